"""The page on what was measured on accelerators."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from gpu.products import summary

HEAD = """# Measured on a GPU

`python integration/gpu PRESET` (or `nox -s gpu -- PRESET`) runs training steps of whole models on
the one accelerator of a machine and writes this page from `docs/results/gpu`. Each step runs by
`jax.jit`, and by `frontends.jax.parallelize` with a plan for one device of the preset; state is
donated in both. *predicted* is the time that the plan states, made from the preset and the program
alone, before anything ran. *difference* is the largest relative difference of the losses of the
first three steps; in bfloat16 the two programs round in other places. *kernels* are what the
program of `jax.jit` launches, and *counted* what the plan counts.

"""


PRODUCTS = """
## Products of matrices

`python integration/gpu products PRESET` measures them, and writes `docs/results/gpu/products`. The
numbers of `costmodel.ProductUnits` in the presets of H100 and H200 were chosen on these products.
Predicted times include a launch, which the measured ones, from CUDA graphs, have in part only: so
the smallest products are the worst.

"""


def records(folder: Path) -> tuple[list[Any], list[Any]]:
    """The records of steps and of products in docs/results/gpu."""
    steps, products = (
        [json.loads(path.read_text(encoding="utf-8")) for path in sorted(of.glob("*.json"))]
        for of in (folder, folder / "products")
    )
    return steps, products


def page(steps: Sequence[Any], products: Sequence[Any]) -> str:
    """The page of records, each as `python integration/gpu` writes it."""
    listed = "".join(f"- {document['device']}: {summary(document)}\n" for document in products)
    return HEAD + "\n".join(map(_section, steps)) + PRODUCTS + listed


def _section(document: Any) -> str:
    rows = document["rows"]
    errors = [abs(row["predicted_s"] / row["ours_s"] - 1) for row in rows]
    lines = [
        f"## {document['device']}",
        "",
        f"Preset `{document['preset']}`, JAX {document['jax']}. The median error of the prediction "
        f"is {median(errors):.0%}, the largest {max(errors):.0%}.",
        "",
        "| step | `jax.jit` | ours | predicted | of ours | difference | kernels | counted |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        ratio = row["predicted_s"] / row["ours_s"]
        seconds = (f"{1e3 * row[key]:.1f} ms" for key in ("jit_s", "ours_s", "predicted_s"))
        counts = f"{row['kernels']} | {row['predicted_kernels']}"
        lines.append(
            f"| {row['name']} | {' | '.join(seconds)} | {ratio:.2f} | "
            f"{row['difference']:.1e} | {counts} |"
        )
    return "\n".join(lines) + "\n"
