"""Simulates the pipeline of a plan: when each stage computes which microbatch.

A stage runs its microbatches in a fixed order: first as many forwards as it may hold, then a
backward and a forward in turn, then the remaining backwards. This is 1F1B, or with its numbers of
held microbatches eager-1F1B, or GPipe if a stage may hold all. An action starts when its stage is
free and its input has arrived. The zero-bubble schedules are not simulated here: they split
backward in two and run the second half later.

With GPipe the last action ends at the time of Alpa's Eq. 2, and so it does with 1F1B if all stages
take equally long. If they do not, a step of 1F1B may be shorter, because the first stages already
drain while the last ones still fill: by a fifth with a few microbatches, by nothing with many. It
was never longer (tests).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from stagecut.base.checks import is_amount, is_count
from stagecut.errors import InvalidInputError

FORWARD_SHARE = 1 / 3
"""The share of forward in a microbatch's time. Backward has two products for each one of forward
(Narayanan et al., SC 2021, appendix). With recomputation the share is a quarter."""


@dataclass(frozen=True, slots=True)
class MicrobatchPass:
    """The forward or the backward of one microbatch on one stage."""

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
        times_s: Time of one microbatch on each stage, forward and backward.
        in_flight: How many microbatches each stage may hold; not more than the previous stage.
        n_microbatches: Microbatches of the step.
        forward_share: The share of forward in each time.

    Raises:
        InvalidInputError: A stage may hold more microbatches than the previous one, and so would
            wait for some that this one may not begin yet; or there is no stage or no microbatch, or
            a time is negative or not finite.

    Examples:
        >>> for actions in simulate((3.0, 3.0), (2, 1), n_microbatches=2):
        ...     print(*(f"{a.kind[0]}{a.microbatch} {a.start_s:g}-{a.stop_s:g}" for a in actions))
        f0 0-1 f1 1-2 b0 4-6 b1 7-9
        f0 1-2 b0 2-4 f1 4-5 b1 5-7
    """
    are_times = len(times_s) == len(in_flight) > 0 and all(map(is_amount, times_s))
    if not (are_times and is_count(n_microbatches) and 0 <= forward_share <= 1):
        raise InvalidInputError(
            "a pipeline has at least one stage and one microbatch, for each stage a time that is "
            "finite and not negative and an entry of in_flight, and a share of forward from 0 to "
            f"1; got times_s={tuple(times_s)}, in_flight={tuple(in_flight)}, "
            f"n_microbatches={n_microbatches!r} and forward_share={forward_share!r}"
        )
    if not all(map(is_count, in_flight)) or any(a < b for a, b in pairwise(in_flight)):
        raise InvalidInputError(
            "a stage holds at least one microbatch, and at most as many as the previous stage; "
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
    """The order in which a stage that holds at most `held` microbatches runs its actions."""
    order: list[tuple[Literal["forward", "backward"], int]] = []
    for microbatch in range(n_microbatches + held):
        if microbatch >= held:
            order.append(("backward", microbatch - held))
        if microbatch < n_microbatches:
            order.append(("forward", microbatch))
    return order
