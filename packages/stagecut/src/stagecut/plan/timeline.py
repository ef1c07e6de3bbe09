"""When every stage of a plan computes which microbatch: the pipeline, simulated.

A stage runs its microbatches in a fixed order: as many forwards as it may hold, then a backward and
a forward in turn, then the backwards that are left. That is 1F1B, with its own warm-up eager-1F1B,
and GPipe if all may be held. An action starts when the stage is free and its input has arrived.
The zero-bubble schedules are not here: they cut backward in two and run its second half later.

With GPipe the last one stops when Alpa's Eq. 2 says, and with 1F1B if all stages take as long. If
they do not, a step of 1F1B may be shorter, as the pipeline already drains while it still fills: a
fifth shorter with a few microbatches, nothing with many. It was never longer (tests).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from stagecut.base.checks import is_amount, is_count
from stagecut.errors import InvalidInputError

FORWARD_SHARE = 1 / 3
"""Of a microbatch's time: backward has two products for each one of forward (Narayanan et al.,
SC 2021, appendix). With recomputation the share is a quarter."""


@dataclass(frozen=True, slots=True)
class MicrobatchPass:
    """One microbatch on one stage, there or back."""

    kind: Literal["forward", "backward"]
    microbatch: int
    start_s: float
    stop_s: float


def simulate(
    times_s: Sequence[float],
    in_flight: Sequence[int],
    n_microbatches: int,
    forward_share: float = FORWARD_SHARE,
) -> tuple[tuple[MicrobatchPass, ...], ...]:
    """The actions of each stage, in order.

    Args:
        times_s: Of one microbatch on each stage, forward and backward.
        in_flight: How many microbatches each stage may hold; not more than the stage before it.
        n_microbatches: Of the step.
        forward_share: What part of each time is forward.

    Raises:
        InvalidInputError: A stage waits for microbatches that the one before may not begin yet, or
            there is no stage, no microbatch, or a time that is none.

    Examples:
        >>> for actions in simulate((3.0, 3.0), (2, 1), n_microbatches=2):
        ...     print(*(f"{a.kind[0]}{a.microbatch} {a.start_s:g}-{a.stop_s:g}" for a in actions))
        f0 0-1 f1 1-2 b0 4-6 b1 7-9
        f0 1-2 b0 2-4 f1 4-5 b1 5-7
    """
    are_times = len(times_s) == len(in_flight) > 0 and all(map(is_amount, times_s))
    if not (are_times and is_count(n_microbatches) and 0 <= forward_share <= 1):
        raise InvalidInputError(
            "a pipeline has a stage and a microbatch, of each stage a time that is finite and not "
            "negative and what it may hold, and forward is a part of it; got "
            f"times_s={tuple(times_s)}, in_flight={tuple(in_flight)}, "
            f"n_microbatches={n_microbatches!r} and forward_share={forward_share!r}"
        )
    if not all(map(is_count, in_flight)) or any(a < b for a, b in pairwise(in_flight)):
        raise InvalidInputError(
            "a stage holds at least one microbatch, and at most as many as the stage before it; "
            f"got in_flight={tuple(in_flight)}"
        )
    orders = [_order(held, n_microbatches) for held in in_flight]
    done: dict[tuple[str, int, int], float] = {}
    actions: list[list[MicrobatchPass]] = [[] for _ in times_s]
    last = len(times_s) - 1
    waiting = list(range(len(times_s)))
    while waiting:
        still = []
        for stage in waiting:
            order, free_s = orders[stage], actions[stage][-1].stop_s if actions[stage] else 0.0
            while len(actions[stage]) < len(order):
                kind, microbatch = order[len(actions[stage])]
                if kind == "forward":
                    needs = ("forward", stage - 1, microbatch) if stage else None
                    takes_s = forward_share * times_s[stage]
                else:
                    source = ("backward", stage + 1) if stage < last else ("forward", stage)
                    needs = (*source, microbatch)
                    takes_s = (1 - forward_share) * times_s[stage]
                if needs is not None and needs not in done:
                    still.append(stage)
                    break
                start_s = max(free_s, done[needs] if needs is not None else 0.0)
                free_s = start_s + takes_s
                done[kind, stage, microbatch] = free_s
                actions[stage].append(MicrobatchPass(kind, microbatch, start_s, free_s))
        waiting = still
    return tuple(map(tuple, actions))


def _order(held: int, n_microbatches: int) -> list[tuple[Literal["forward", "backward"], int]]:
    """What a stage runs, of `held` microbatches at most at once."""
    order: list[tuple[Literal["forward", "backward"], int]] = []
    for microbatch in range(n_microbatches + held):
        if microbatch >= held:
            order.append(("backward", microbatch - held))
        if microbatch < n_microbatches:
            order.append(("forward", microbatch))
    return order
