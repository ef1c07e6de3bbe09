"""The page on measurements of others: a table of predictions, and how good they are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations, groupby
from pathlib import Path
from statistics import median

from shardspec.report.figure import new_figure

from published.cases import groups
from published.predict import Prediction

HEAD = """# Predicted and measured on clusters of others

`nox -s published` plans training steps that papers and their artifacts measured, each with the plan
that was measured, and compares what the plan predicts. A plan is asked for in the words of its
authors: `stages=`, `chunks=`, `dp=`, `tp=`, `zero=`, `mesh=`, `schedule=`, all options of
`plan_for`. Clusters are [presets](costmodel.md); nothing in them was fitted to a step here, and the
source of each figure is in the preset. *ratio* is predicted by measured time.

![Predicted against measured seconds of a step, on logarithmic scales](published.svg)

"""

NOTES = """
## How the steps were made

- GPTs on Selene are Megatron's (`integration/published/transformer.py`): dropout, biases, norms and
  softmax that keep little for backward, weights in half precision beside their originals in
  float32. Those of SC '21 have no sequence parallelism, so the sums of blocks are pinned to be
  whole (`pin=`). Embedding and head are not tied.
- GPTs, mixtures of experts and Wide-ResNets on p3 are the zoo's, in the types that Alpa used;
  blocks of GPTs and experts are recomputed. In microbatches, Wide-ResNets normalize by groups, as
  batch norm is no sum over examples.
- `zb-auto` may take all memory, where ZB-2P stops at twice that of 1F1B.
- Where blocks of several sizes are no layers of ours (Wide-ResNets), only the number of stages is
  pinned.
- A plan fits if it takes less than the device's memory without 1.5 GiB, which CUDA, its libraries
  and NCCL take [chosen]. Memory is that of our runtime, which runs forward, backward and update as
  programs of their own, and both parts of a split backward.
- Llamas call cuDNN's attention. torchtitan's H100s are limited to 500 W, which no price knows, so
  its step is predicted too fast. Llama 3's pipeline had chunks in an order of its own; its plan is
  priced as 1F1B with one chunk a rank, whose bubble is longer."""


def page(found: Sequence[Prediction]) -> str:
    """The page of predictions."""
    lines = [HEAD, "## By family\n", *_families(found), "\n## Plans\n", *_plans(found), NOTES]
    return "\n".join(lines)


def errors(found: Iterable[Prediction]) -> list[float]:
    """The relative errors of predicted times."""
    return [abs(ratio - 1) for one in found if (ratio := one.ratio) is not None]


def worst(found: Iterable[Prediction]) -> float:
    """The largest factor between a predicted and a measured time, either way."""
    ratios = [ratio for one in found if (ratio := one.ratio) is not None]
    return max(max(ratio, 1 / ratio) for ratio in ratios)


def rank(found: Iterable[Prediction]) -> float | None:
    """Kendall's tau over pairs of plans of one step whose measured times differ; None without."""
    agreements = []
    for _, plans in groupby(found, key=lambda one: one.group):
        for one, other in combinations([p for p in plans if p.measured_s is not None], 2):
            measured = one.measured_s - other.measured_s  # type: ignore[operator]
            predicted = one.predicted_s - other.predicted_s
            if measured:
                agreements.append(math.copysign(1, measured * predicted) if predicted else 0)
    return sum(agreements) / len(agreements) if agreements else None


def memory_ratios(found: Iterable[Prediction]) -> list[float]:
    """Predicted by measured peak memory."""
    return [one.predicted_gib / one.measured_gib for one in found if one.measured_gib]


def _families(found: Sequence[Prediction]) -> list[str]:
    lines = [
        "| family | plans | median ratio | median error | within 25 % | worst | rank (tau) "
        "| memory | fits, wrong |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    names = list(dict.fromkeys(one.family for one in found))
    for name in [*names, "all"]:
        of = [one for one in found if name in (one.family, "all")]
        timed = [one for one in of if one.ratio is not None]
        tau, memory = rank(of), memory_ratios(of)
        near = sum(error <= 0.25 for error in errors(of))
        lines.append(
            f"| {name} | {len(timed)} | {median(one.ratio or 0 for one in timed):.2f} | "
            f"{median(errors(of)):.0%} | {near} of {len(timed)} | {worst(of):.2f} | "
            f"{'' if tau is None else f'{tau:.2f}'} | "
            f"{f'{median(memory):.2f}' if memory else ''} | "
            f"{sum(one.predicted_fits != one.measured_fits for one in of)} of {len(of)} |"
        )
    return lines


def _plans(found: Sequence[Prediction]) -> list[str]:
    lines = [
        "| step | plan | predicted | measured | ratio | GiB, predicted | measured | fits | did |",
        "|---|---|--:|--:|--:|--:|--:|---|---|",
    ]
    for one in found:
        measured = "" if one.measured_s is None else f"{one.measured_s:.3f} s"
        ratio = "" if one.ratio is None else f"{one.ratio:.2f}"
        gib = "" if one.measured_gib is None else f"{one.measured_gib:.1f}"
        fits = ["yes" if fit else "no" for fit in (one.predicted_fits, one.measured_fits)]
        lines.append(
            f"| {one.group} | {one.plan} | {one.predicted_s:.3f} s | {measured} | {ratio} | "
            f"{one.predicted_gib:.1f} | {gib} | {fits[0]} | {fits[1]} |"
        )
    sources = {group.family: group.source for group in groups()}
    return [
        *lines,
        "",
        "Sources:",
        "",
        *(f"- {name}: {sources[name]}" for name in dict.fromkeys(one.family for one in found)),
    ]


def plot(found: Sequence[Prediction], path: Path) -> None:
    """Draw predicted against measured times."""
    figure = new_figure(6.4, 5.2)
    axes = figure.add_subplot()
    times: list[float] = []
    for name in dict.fromkeys(one.family for one in found):
        of = [one for one in found if one.family == name]
        points = [(p.measured_s, p.predicted_s) for p in of if p.measured_s is not None]
        axes.plot(*zip(*points, strict=True), "o", ms=4, label=name)
        times += [seconds for point in points for seconds in point]
    ends = [min(times) / 1.2, max(times) * 1.2]
    axes.plot(ends, ends, color="0.5", lw=1)
    for factor in (0.75, 1.25):
        axes.plot(ends, [end * factor for end in ends], color="0.8", lw=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured (s)", ylabel="predicted (s)")
    axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})
