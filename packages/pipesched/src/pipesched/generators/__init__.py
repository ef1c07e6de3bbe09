"""The known schedules, a family a file; `make` finds them by name.

All of them list forwards and backwards only; `pipesched.with_communication` adds the transfers.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from pipesched.errors import ArgumentError, UnknownScheduleError
from pipesched.generators.automatic import zb_1p, zb_auto
from pipesched.generators.chimera import chimera
from pipesched.generators.dualpipe import dualpipe, dualpipe_v
from pipesched.generators.inference import inference
from pipesched.generators.interleaved import interleaved_1f1b, looped_bfs
from pipesched.generators.v_shaped import v_half, v_min, zb_v
from pipesched.generators.warm_up import eager_1f1b, gpipe, one_f_one_b
from pipesched.generators.zero_bubble import zb_h1, zb_h2
from pipesched.schedule.schedule import Schedule

__all__ = [
    "NAMES",
    "chimera",
    "dualpipe",
    "dualpipe_v",
    "eager_1f1b",
    "gpipe",
    "inference",
    "interleaved_1f1b",
    "looped_bfs",
    "make",
    "one_f_one_b",
    "v_half",
    "v_min",
    "zb_1p",
    "zb_auto",
    "zb_h1",
    "zb_h2",
    "zb_v",
]

_GENERATORS: dict[str, Callable[..., Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "eager-1f1b": eager_1f1b,
    "interleaved-1f1b": interleaved_1f1b,
    "looped-bfs": looped_bfs,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zb-1p": zb_1p,
    "zb-auto": zb_auto,
    "zb-v": zb_v,
    "v-half": v_half,
    "v-min": v_min,
    "dualpipe": dualpipe,
    "dualpipe-v": dualpipe_v,
    "chimera": chimera,
    "inference": inference,
}

NAMES = tuple(_GENERATORS)
"""What `make` knows."""


def make(name: str, n_stages: int, n_microbatches: int, **options: Any) -> Schedule:
    """The schedule called `name`.

    Args:
        name: One of `NAMES`.
        n_stages: Of the model; those on V-shaped or looped placements have fewer ranks.
        n_microbatches: Of the batch.
        options: Those of the generator, as `n_chunks=4` of "interleaved-1f1b".

    Raises:
        UnknownScheduleError: No schedule is called `name`.
        ArgumentError: Sizes for which it is not defined, or an option that it does not have.

    Examples:
        >>> print(make("zb-h1", n_stages=2, n_microbatches=3))
        zb-h1 stages=2 microbatches=3
        rank 0: F0.0 F0.1 I0.0 W0.0 F0.2 I0.1 W0.1 I0.2 W0.2
        rank 1: F1.0 I1.0 F1.1 I1.1 W1.0 F1.2 I1.2 W1.1 W1.2
    """
    if not isinstance(name, str) or name not in _GENERATORS:
        raise UnknownScheduleError(f"a schedule is one of {', '.join(NAMES)}; got name={name!r}")
    generator = _GENERATORS[name]
    known = [p.name for p in signature(generator).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise ArgumentError(
                f"the options of {name} are {', '.join(known) or 'none'}; got {option}"
            )
    return generator(n_stages, n_microbatches, **options)
