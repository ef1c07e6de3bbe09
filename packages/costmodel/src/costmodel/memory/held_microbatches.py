"""How many microbatches a pipeline stage holds at once, by schedule.

With `S` stages and `M` microbatches, stage `i` (from 0) holds the activations of at most

    inference     1                       forward alone keeps nothing
    gpipe         M                       all forwards come before the first backward
    1f1b          S - i
    eager-1f1b    2 (S - i) - 1
    interleaved   (v - 1) S + 2 (S - i) - 1   of its `v` chunks: each is a v-th of the stage
    zb-h1         S - i                   and the inputs of i waiting weight gradients
    zb-h2         2 (S - i) - 1           and the inputs of 2 i waiting weight gradients

microbatches, but never of more than there are: `M`, interleaved `v M`, and `M` of activations and
waiting weight gradients together.

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
    """What a stage holds under a schedule with one stage per device."""

    activations: Callable[[int, int], int]
    """From the number of stages from this one to the last, and of microbatches, to the number of
    held microbatches, if there are that many."""
    waiting: int = 0
    """Number of waiting weight gradients for each stage before this one."""


_LINEAR = {
    "gpipe": _Linear(lambda to_last, n_microbatches: n_microbatches),
    "1f1b": _Linear(lambda to_last, n_microbatches: to_last),
    "eager-1f1b": _Linear(lambda to_last, n_microbatches: 2 * to_last - 1),
    "zb-h1": _Linear(lambda to_last, n_microbatches: to_last, waiting=1),
    "zb-h2": _Linear(lambda to_last, n_microbatches: 2 * to_last - 1, waiting=2),
}

LINEAR_SCHEDULES = tuple(_LINEAR)
"""Schedules that train and have one stage per device, so that the activations that a stage holds
follow from the number of stages after it."""

SCHEDULES = (*LINEAR_SCHEDULES, "interleaved", "inference")
"""All schedules that `in_flight` knows."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """The microbatches that a stage holds when it holds most."""

    activations: int
    """Microbatches between forward and backward; of one chunk each if stages are interleaved."""
    weight_gradients: int = 0
    """Microbatches whose gradient of the input is done, but not that of the weights."""

    def n_bytes(self, activation: int, weight_gradient: int = 0) -> int:
        """Bytes of all held microbatches.

        Args:
            activation: Bytes of one microbatch between forward and backward.
            weight_gradient: Bytes of one microbatch that waits for its weight gradient. If this is
                more than `activation`, as with recomputation, every microbatch counts as waiting.
                This is an upper bound, because the numbers are those at the peak of activations.
        """
        activation = count("activation", activation)
        weight_gradient = count("weight_gradient", weight_gradient)
        larger = max(activation, weight_gradient)
        return self.activations * larger + self.weight_gradients * weight_gradient


def in_flight(
    schedule: str, stage: int, n_stages: int, n_microbatches: int, *, n_chunks: int = 1
) -> InFlight:
    """The most microbatches that a stage holds at once.

    Args:
        schedule: One of `SCHEDULES`; names are the same as in pipesched.
        stage: Index of the stage, from 0.
        n_stages: Number of stages; for "interleaved" the number of devices, with `n_chunks` chunks
            each.
        n_microbatches: Number of microbatches of one step.
        n_chunks: At least 2 for "interleaved", 1 for the others.

    Raises:
        UnknownNameError: No schedule has this name.
        QuantityError: A count is not a whole number in its range, or for "interleaved" the number
            of microbatches is not a multiple of `n_stages`.

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
