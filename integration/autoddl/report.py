"""The record of all cases, and the page that is made from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from autoddl.cases import LENGTH, MICROBATCHES, REPLICAS, SEQUENCES, WIDTH, Result

HEAD = f"""# AutoDDL's cases

Written by `python integration/autoddl` from its search; edit that, not this page.

AutoDDL (sections 5.1 and 5.2) compares its strategies with Megatron's: the best two-dimensional
grid of data and model parallelism. It does so on Piz Daint, which has one NVIDIA P100 on each host.
Here, both are priced by `costmodel`'s preset `piz-daint`. The collectives of a grid are written
down by hand (`integration/autoddl/megatron.py`); each may use the axes of the mesh one after the
other, as the collectives of `autoshard` may.

"Grid's time" and "found" are seconds of communication in a step, of the best grid and of the
sharding found; "saved" is the difference as a share of the grid's time; "AutoDDL" is the share
that the paper measured. "Gap" is the gap between the whole predicted step, compute included, and
its lower bound.

- VGG13: eight images on each device and all layers; both include the gradients of the convolutions.
- Transformer: width {WIDTH}, {SEQUENCES} sequences of length {LENGTH} in {MICROBATCHES}
  microbatches, and two layers, of which the first needs no gradient of its input. For operators
  other than products, only the split counts. There are {REPLICAS} replicas, each with all weights
  split over its devices; only the sharding inside a replica is searched.

Not shown: measured times; embedding and logits, which both have; the real number of layers, since
each further layer costs as much as the second one; memory, except for that of the weights.

| model | devices | mesh | best grid (data x model) | grid's time | found | saved | AutoDDL | gap |
|---|---|---|---|---|---|---|---|---|
"""


def as_json(results: Sequence[Result]) -> str:
    """The record: all numbers of the page, unrounded."""
    return json.dumps([asdict(one) for one in results], indent=1) + "\n"


def page(results: Sequence[Result]) -> str:
    """The page in Markdown."""
    return HEAD + "".join(_row(one) for one in results)


def _row(one: Result) -> str:
    cells = (
        one.model,
        str(one.devices),
        "x".join(map(str, one.mesh)),
        f"{one.best.data} x {one.best.model}",
        f"{one.best.seconds * 1e3:,.1f} ms",
        f"{one.found_s * 1e3:,.1f} ms",
        f"{one.saved:.1%}",
        f"{one.published:.1%}",
        f"{one.gap:.1%}",
    )
    return "| " + " | ".join(cells) + " |\n"
