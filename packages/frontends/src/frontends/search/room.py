"""Which numbers of microbatches leave room for a plan, by bounds: without a trace or a search.

Of what devices hold, state does not depend on the number of microbatches, and activations are
linear in the number of its examples. So two numbers tell the bytes of all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from frontends.price.bounds import Bounds
from frontends.price.parallel_options import logical_meshes


@dataclass(frozen=True)
class Room:
    """The room for plans of a step in any number of microbatches."""

    whole: Bounds
    """The bounds in one microbatch."""

    few: Bounds
    """Those in another number, or the same."""

    examples: Callable[[int], int]
    """Returns the number of examples of a microbatch, given that of microbatches; 0 without a
    batch."""

    has_baselines: bool = True
    """Whether the usual plans are baselines, with pipelines of one microbatch a stage or more."""

    def fits(self, n: int) -> bool:
        """Whether anything may fit all devices in `n` microbatches."""
        few = self.few.layered.step.microbatches
        always, saved_of_few = _all_parts(self.few)
        _, saved_of_whole = _all_parts(self.whole)
        of_examples: float = saved_of_whole
        if few > 1:
            of_examples = (saved_of_whole - saved_of_few) / (1 - self._share(few))
        saved = saved_of_whole - of_examples * (1 - self._share(n))
        return always + saved <= self.few.pool.all_bytes

    def fits_usual(self, n: int) -> bool:
        """Whether a usual plan may fit in `n` microbatches, at least as many as those of `few`.

        A baseline without a pipeline splits the examples of a microbatch over all devices. Megatron
        splits them over the first axis of the mesh, and state over the last.
        """
        if not self.fits(n) or not self.has_baselines:
            return self.fits(n)
        pool, examples = self.few.pool, self.examples(n)
        *data, tensor = logical_meshes(pool.whole, pool)[-1].shape
        has_megatron = self.few.state_bytes() <= pool.least_limit * tensor
        return (
            examples % pool.n_devices == 0
            or (has_megatron and examples % math.prod(data) == 0)
            or all(self._fits_equal_stages(n))
        )

    def _fits_equal_stages(self, n: int) -> Iterator[bool]:
        """For each stage of equally many layers on equally many devices, whether it may fit."""
        n_layers, pool = self.few.layered.n_layers, self.few.pool
        n_stages = max(2, pool.n_hosts)
        devices, rest = divmod(pool.n_devices, n_stages)
        yield pool.is_equal and rest == 0 and n_layers >= n_stages
        each, more = divmod(n_layers, n_stages)
        share = self._share(n) / self._share(self.few.layered.step.microbatches)
        first = 0
        for stage in range(n_stages):
            end = first + each + (stage < more)
            always, saved = self.few.held_parts(first, end - 1)
            held = min(n_stages - stage, n)
            yield always + held * share * saved <= pool.least_limit * devices
            first = end

    def _share(self, n: int) -> float:
        """The examples of one of `n` microbatches, as a share of those of one."""
        return self.examples(n) / self.examples(1) if self.examples(1) else 1 / n


def _all_parts(bounds: Bounds) -> tuple[int, int]:
    """What all layers hold; a step may have other layers in another number of microbatches."""
    return bounds.held_parts(0, bounds.layered.n_layers - 1)
