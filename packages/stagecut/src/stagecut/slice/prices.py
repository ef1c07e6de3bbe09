"""The costs of the stages of a search: lower bounds at first, prices once they are asked for."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from stagecut.base.progress import Progress
from stagecut.base.types import BoundFunction, Span, StageCost
from stagecut.errors import InvalidBoundError
from stagecut.placement.offers import Places
from stagecut.slice.arcs import Floats, Ints
from stagecut.slice.bounds import ROUNDING
from stagecut.slice.price_requests import Asker, Options
from stagecut.slice.usable import usable_stages


@dataclass(frozen=True, slots=True, eq=False)
class PricedStages:
    """Arrays with one entry for each option of each stage, in the order of the stages."""

    stage: Ints
    """Index of the stage."""
    option: Ints
    """Index of the option among those of the stage."""
    time_s: Floats
    once_s: Floats
    base_bytes: Floats
    """Memory with no microbatch in flight."""
    activation_bytes: Floats


class Prices:
    """The stages that may be used, with their costs as far as these are known.

    Stages of equal structure on equal submeshes share one cost, which is asked for once. As long as
    the cost of a stage is not known, the stage has one option, with its lower bound as time and
    without memory.
    """

    def __init__(
        self,
        n_layers: int,
        places: Places,
        asker: Asker,
        bound_s: BoundFunction | None,
        structure: Sequence[Hashable] | None,
        progress: Progress | None,
        extra: tuple[int, ...] = (),
    ) -> None:
        self.stages = usable_stages(n_layers, places)
        self.n_asked = 0
        self._shapes, self._structure = places.shapes, structure
        self._asker, self._extra, self._progress = asker, extra, progress
        # A shape may occur in `shapes` twice, if hosts are of several kinds.
        shape = np.array([places.shapes.index(each) for each in places.shapes])
        run = _runs(n_layers, range(n_layers) if structure is None else structure)
        key = run[self.stages.first, self.stages.last] * len(shape) + shape[self.stages.shape]
        _, self._example, self._key = np.unique(key, return_index=True, return_inverse=True)
        bounds = np.zeros((self._example.size, 4))
        if bound_s is not None:
            bounds[:, 0] = [_checked(bound_s, self.span(each)) for each in self._example.tolist()]
        self._bounds_s = bounds[:, 0].copy()
        # A key stands for the stages that share one cost. Rows have one entry for each option of a
        # key: first the bounds of all keys, then the options of the keys that are priced.
        self._rows, self._new_rows = bounds, list[tuple[float, ...]]()
        self._begin = np.arange(self._example.size)
        self._n_options = np.isfinite(self._bounds_s).astype(np.int64)
        self._options: dict[int, Options] = {}

    def span(self, stage: int) -> Span:
        """First layer, last layer and submesh of a stage, as the cost function gets them."""
        stages = self.stages
        return (
            int(stages.first[stage]),
            int(stages.last[stage]),
            self._shapes[stages.shape[stage]],
        )

    def option(self, stage: int, option: int) -> StageCost:
        """The cost of one option of a priced stage."""
        return self._options[int(self._key[stage])][option]

    def are_known(self, stages: Iterable[int]) -> bool:
        """Whether all of these stages were priced."""
        return all(int(self._key[stage]) in self._options for stage in stages)

    def are_all_known(self) -> bool:
        """Whether every stage was priced."""
        return len(self._options) == self._example.size

    def learn_all(self) -> None:
        """Ask for the cost of every stage."""
        self._learn(range(self._example.size))

    def learn(self, stages: Iterable[int]) -> None:
        """Ask for the costs of those of the stages whose cost is not known yet."""
        self._learn(dict.fromkeys(int(self._key[stage]) for stage in stages))

    def _learn(self, keys: Iterable[int]) -> None:
        keys = [key for key in keys if key not in self._options]
        spans = [self.span(self._example[key]) for key in keys]
        if self._structure is None:
            contents: list[Hashable] = [span[:2] for span in spans]
        else:
            contents = [tuple(self._structure[first : last + 1]) for first, last, _ in spans]
        for key, span, (options, asked) in zip(
            keys, spans, self._asker.ask(spans, contents, self._extra), strict=True
        ):
            for each in options:
                if each.time_s < self._bounds_s[key] * (1 - ROUNDING):
                    raise InvalidBoundError(
                        "bound_s must never exceed the cost of a stage; "
                        f"got bound_s={self._bounds_s[key]} and time_s={each.time_s} for layers "
                        f"{span[0]}-{span[1]} on {span[2]}"
                    )
            self._options[key] = options
            self._begin[key] = len(self._rows) + len(self._new_rows)
            self._n_options[key] = len(options)
            self._new_rows += [
                (each.time_s, each.once_s, each.peak_bytes(0), each.activation_bytes)
                for each in options
            ]
            self.n_asked += asked
            if self._progress is not None:
                self._progress(len(self._options), self._example.size)

    def candidates(self) -> PricedStages:
        """All options of all stages, as far as they are known, and bounds for the others."""
        if self._new_rows:
            self._rows = np.concatenate((self._rows, np.array(self._new_rows)))
            self._new_rows = []
        n_options = self._n_options[self._key]
        stage = np.repeat(np.arange(self._key.size), n_options)
        option = np.arange(stage.size) - np.repeat(np.cumsum(n_options) - n_options, n_options)
        rows = self._rows[self._begin[self._key[stage]] + option]
        return PricedStages(stage, option, *rows.T)


def _runs(n_layers: int, structure: Iterable[Hashable]) -> Ints:
    """A number for each run of layers, equal for runs of equal structure; indexed [first, last]."""
    structure = tuple(structure)
    run = np.zeros((n_layers, n_layers), dtype=np.int64)
    # A run is identified by the run without its last layer, and by that layer.
    known: dict[tuple[int, Hashable], int] = {}
    for first in range(n_layers):
        shorter = 0
        for last in range(first, n_layers):
            shorter = known.setdefault((shorter, structure[last]), len(known) + 1)
            run[first, last] = shorter
    return run


def _checked(bound_s: BoundFunction, span: Span) -> float:
    bound = bound_s(*span)
    if not bound >= 0:
        raise InvalidBoundError(
            "a lower bound is a time that is not negative; "
            f"got bound_s({span[0]}, {span[1]}, {span[2]})={bound}"
        )
    return bound
