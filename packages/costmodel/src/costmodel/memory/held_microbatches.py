"""How many microbatches a pipeline stage holds at once, by schedule.

Stage `i`, counted from 0, of `S` stages with `M` microbatches holds the activations of at most

    inference     1                       forward alone keeps nothing
    gpipe         M                       all forwards come before the first backward
    1f1b          S - i
    eager-1f1b    2 (S - i) - 1
    interleaved   (v - 1) S + 2 (S - i) - 1   of its `v` chunks: each is a v-th of the stage
    zb-h1         S - i                   and what i weight gradients wait for
    zb-h2         2 (S - i) - 1           and what 2 i weight gradients wait for

and never of more than there are: `M`, interleaved `v M`, and `M` of both sorts together.

References:
    gpipe: Huang et al., "GPipe", NeurIPS 2019. 1f1b: Narayanan et al., "Efficient Large-Scale
    Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, section 2.2, which has
    interleaved, too; on stage 0 its count is `S (1 + (S - 1)/(S v))` stages (Korthikanti et al.,
    arXiv 2205.05198, section 4.2.3). eager-1f1b: cross-mesh resharding, section 4, with `i` from 1.
    zb-h1, zb-h2: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.3, with `i`
    from 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from costmodel.base.checks import count
from costmodel.errors import QuantityError, UnknownNameError


@dataclass(frozen=True, slots=True)
class _Linear:
    """What a stage holds by a schedule of one stage a device."""

    activations: Callable[[int, int], int]
    """Of the stages from this one to the last, and the microbatches; there may be fewer."""
    waiting: int = 0
    """Weight gradients that wait, for each stage before this one."""


_LINEAR = {
    "gpipe": _Linear(lambda to_last, n_microbatches: n_microbatches),
    "1f1b": _Linear(lambda to_last, n_microbatches: to_last),
    "eager-1f1b": _Linear(lambda to_last, n_microbatches: 2 * to_last - 1),
    "zb-h1": _Linear(lambda to_last, n_microbatches: to_last, waiting=1),
    "zb-h2": _Linear(lambda to_last, n_microbatches: 2 * to_last - 1, waiting=2),
}

LINEAR_SCHEDULES = tuple(_LINEAR)
"""Those that train and have one stage a device, so that what a stage has in activations follows
from the stages after it."""

SCHEDULES = (*LINEAR_SCHEDULES, "interleaved", "inference")
"""What `in_flight` knows."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """What a stage holds when it holds most."""

    activations: int
    """Microbatches between forward and backward; of one chunk each where stages are interleaved."""
    weight_gradients: int = 0
    """Microbatches whose gradient of the input is done, but not that of the weights."""

    def n_bytes(self, activation: int, weight_gradient: int = 0) -> int:
        """Bytes of all that is held.

        Args:
            activation: Of one microbatch between forward and backward.
            weight_gradient: Of one microbatch that waits for its weights' gradient. If that is more
                than `activation`, as with recomputation, every microbatch counts as waiting: a
                bound, as the counts are those of the peak otherwise.
        """
        activation = count("activation", activation)
        weight_gradient = count("weight_gradient", weight_gradient)
        larger = max(activation, weight_gradient)
        return self.activations * larger + self.weight_gradients * weight_gradient


def in_flight(
    schedule: str, stage: int, n_stages: int, n_microbatches: int, *, n_chunks: int = 1
) -> InFlight:
    """What a stage holds at most at once.

    Args:
        schedule: One of `SCHEDULES`; those that pipesched has are called as there.
        stage: From 0.
        n_stages: Of the pipeline. Interleaved, they are the devices, with `n_chunks` chunks each.
        n_microbatches: Of one step.
        n_chunks: At least 2 for "interleaved"; 1 for the others.

    Raises:
        UnknownNameError: No schedule has this name.
        QuantityError: A count is no whole number in its range, or the microbatches of "interleaved"
            are no multiple of the stages.

    Examples:
        >>> in_flight("eager-1f1b", 0, n_stages=4, n_microbatches=32)
        InFlight(activations=7, weight_gradients=0)
        >>> in_flight("zb-h1", 1, n_stages=4, n_microbatches=32)
        InFlight(activations=3, weight_gradients=1)
    """
    if schedule not in SCHEDULES:
        raise UnknownNameError(
            f"a schedule is one of {', '.join(SCHEDULES)}; got {schedule!r}", schedule
        )
    n_stages = count("n_stages", n_stages, least=1)
    n_microbatches = count("n_microbatches", n_microbatches, least=1)
    if count("stage", stage) >= n_stages:
        raise QuantityError(
            f"a stage lies in 0..n_stages - 1; got stage={stage} and n_stages={n_stages}"
        )
    if (count("n_chunks", n_chunks, least=1) > 1) != (schedule == "interleaved"):
        raise QuantityError(
            f"n_chunks is >= 2 if interleaved and 1 otherwise; got {n_chunks} for {schedule!r}"
        )
    to_last = n_stages - stage
    if schedule == "interleaved":
        if n_microbatches % n_stages:
            raise QuantityError(
                "interleaved stages take turns with n_stages microbatches, so they divide "
                f"n_microbatches; got n_microbatches={n_microbatches} and n_stages={n_stages}"
            )
        held = (n_chunks - 1) * n_stages + 2 * to_last - 1
        return InFlight(min(held, n_microbatches * n_chunks))
    if schedule == "inference":
        return InFlight(1)
    linear = _LINEAR[schedule]
    activations = min(linear.activations(to_last, n_microbatches), n_microbatches)
    return InFlight(activations, min(linear.waiting * stage, n_microbatches - activations))
