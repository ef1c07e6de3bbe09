"""Products of matrices on a GPU: measured by PyTorch, and compared with what a preset predicts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
from costmodel import Cluster, Product, operator_time

_RUNS = 5
_ROWS = (256, 512, 1024, 2048, 4096, 8192, 16384)
_WEIGHTS = (
    *((512, 512), (1024, 1024), (3072, 768), (768, 3072), (3072, 1024), (1024, 4096)),
    *((4096, 1024), (2048, 2048), (8192, 2048), (2048, 8192), (4096, 4096), (16384, 4096)),
    *((14336, 4096), (4096, 14336), (8192, 8192), (28672, 8192), (12288, 12288)),
    *((50304, 768), (50304, 4096)),
)
"""Columns and terms: those of layers that people train."""

Row = tuple[int, int, int, int, str, float]
"""Rows m, columns n, terms k, batch, layout of the operands (`n` or, transposed, `t`), seconds."""


def shapes() -> Iterator[tuple[int, int, int, int, str]]:
    """Sizes and layouts of the products that are measured, in a fixed order."""
    for m in _ROWS:
        yield from ((m, n, k, 1, "nn") for n, k in _WEIGHTS)
    for m in (1024, 4096, 8192):
        yield from ((m, n, k, 1, layout) for n, k in _WEIGHTS for layout in ("nt", "tn"))
    draw = random.Random(1)
    for _ in range(60):
        m, n, k = (8 * int(2 ** draw.uniform(3, 11)) for _ in range(3))
        yield m, n, k, 1, "nn"
    for batch in (16, 64, 256, 1024):  # of attention: scores, values, and a gradient
        for s in (128, 512, 1024, 2048):
            if batch * s * s <= 6e8:
                for d in (64, 128):
                    yield from ((s, s, d, batch, "nt"), (s, d, s, batch, "nn"))
                    yield s, d, s, batch, "tn"


def measure() -> list[Row]:
    """Median seconds of every product in bfloat16: CUDA graphs of 3 to 60 products, run 5 times."""
    return [(*shape, _seconds(*shape)) for shape in shapes()]


def errors(document: Any) -> list[float]:
    """The relative error of a preset's prediction for each product of a record, a launch included.

    Args:
        document: A record, as `python integration/gpu products PRESET` writes it.
    """
    device = Cluster.preset(document["preset"]).device
    found = []
    for m, n, k, batch, _, seconds in document["rows"]:
        flops, n_bytes = 2.0 * m * n * k * batch, 2.0 * batch * (m * k + k * n + m * n)
        sizes = Product(m, n, k, batch, 2.0)
        predicted_s = operator_time(flops, n_bytes, device, document["dtype"], 1.0, sizes)
        found.append(abs(predicted_s / seconds - 1))
    return found


def summary(document: Any) -> str:
    """A sentence on the errors of a record."""
    of_all = errors(document)
    alone = [e for e, row in zip(of_all, document["rows"], strict=True) if row[3] == 1]
    return (
        f"{len(of_all)} products in {document['dtype']} (PyTorch {document['torch']}): the median "
        f"error of `{document['preset']}` is {median(of_all):.0%}, and 9 of 10 are within "
        f"{np.quantile(of_all, 0.9):.0%}; of the {len(alone)} single ones {median(alone):.0%} and "
        f"{np.quantile(alone, 0.9):.0%}."
    )


def _seconds(m: int, n: int, k: int, batch: int, layout: str) -> float:
    import torch

    def operands(rows: int, columns: int, way: str) -> torch.Tensor:
        sizes = (columns, rows) if way == "t" else (rows, columns)
        made = torch.randn(*((batch,) if batch > 1 else ()), *sizes, device="cuda")
        made = made.to(torch.bfloat16)
        return made.transpose(-1, -2) if way == "t" else made

    pairs = [(operands(m, k, layout[0]), operands(k, n, layout[1])) for _ in range(2)]

    def run(i: int) -> torch.Tensor:
        return torch.matmul(*pairs[i % 2])

    event: Any = torch.cuda.Event
    start, end = (event(enable_timing=True) for _ in range(2))
    for i in range(4):
        run(i)
    first_s = _elapsed(lambda: [run(i) for i in range(2)], start, end) / 2
    times = max(3, min(60, int(6e-3 / max(first_s, 3e-6))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(times):
            run(i)
    graph.replay()
    runs: Sequence[float] = [_elapsed(graph.replay, start, end) / times for _ in range(_RUNS)]
    return median(runs)


def _elapsed(work: Callable[[], object], start: Any, end: Any) -> float:
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3
