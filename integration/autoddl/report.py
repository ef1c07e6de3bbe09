"""The record of all cases and the page that is written from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from autoddl.cases import LENGTH, MICROBATCHES, REPLICAS, SEQUENCES, WIDTH, Result

HEAD = f"""# AutoDDL's cases

Written by `python integration/autoddl` from its search; edit that, not this page.

AutoDDL (sections 5.1 and 5.2) compares its strategies with the best two-dimensional grid of data
and model parallelism, Megatron's, on Piz Daint: one NVIDIA P100 a host. Here both are priced by
`costmodel`'s preset `piz-daint`. A grid's collectives are written down by hand
(`integration/autoddl/megatron.py`); each may use the mesh's axes one after the other, as ours do.
"Saved" is the share of the best grid's seconds of communication in a step; "AutoDDL" is what that
paper measured. The gap is of the whole predicted step, compute included, to its lower bound.

- VGG13: eight images a device, all layers, gradients of the convolutions included in both.
- Transformer: width {WIDTH}, {SEQUENCES} sequences of length {LENGTH} in {MICROBATCHES}
  microbatches, two layers of which the first needs no gradient of its input; of an operator other
  than a product only the split counts. {REPLICAS} replicas, each with all weights split over its
  devices: what is searched is the inside of a replica.

What is not shown: measured times; embedding and logits, which both have; layers in their real
number, as equal layers cost what the second one does; memory but for that of the weights.

| model | devices | mesh | best grid (data x model) | it sends for | found | saved | AutoDDL | gap |
|---|---|---|---|---|---|---|---|---|
"""


def as_json(results: Sequence[Result]) -> str:
    """The record: everything the page says, unrounded."""
    return json.dumps([asdict(one) for one in results], indent=1) + "\n"


def page(results: Sequence[Result]) -> str:
    """The page, in Markdown."""
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
