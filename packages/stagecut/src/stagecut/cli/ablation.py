"""Alpa's ablation of inter-operator parallelism (section 8.3, figure 9), in simulation.

It compares three ways to plan, on the paper's models, cluster, batches and numbers of layers:

- *search*: operators are joined into layers by Eq. 6, and stages are searched by Eq. 2 to 5 (the
  paper calls this "DP");
- *equal operators*: layers have equally many operators, and stages are searched as before;
- *equal layers*: layers are those of Eq. 6, and all stages have equally many, on any submeshes.

A fourth column has the plan that Alpa's repository keeps for the same case, with our price. All
prices are those of `stagecut.profiles`. So the comparison says how well the plans serve one
objective, and not how fast they were on the paper's machines.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from os import PathLike

from costmodel import Cluster
from shardspec.amounts import columns, seconds_text
from shardspec.report.figure import new_figure, save_figure

from stagecut.base.types import Span, Submesh
from stagecut.cli.demo import joined
from stagecut.errors import InfeasibleStagesError
from stagecut.models import model
from stagecut.plan.baseline import balanced_runs
from stagecut.plan.picture import check_picture
from stagecut.plan.price_stages import price_stages
from stagecut.profiles import LayerProfile, Options
from stagecut.slice.slice import slice_stages

VARIANTS = ("search", "equal operators", "equal layers", "Alpa's plan")
_COLOURS = ("#3182bd", "#fdae6b", "#bdbdbd", "#a1d99b")


@dataclass(frozen=True, slots=True)
class AblationCase:
    """One row of the ablation: a model on a cluster, and Alpa's plan for it."""

    model: str
    cluster: str
    n_devices: int
    published: tuple[tuple[int, int], ...]
    """Layers and GPUs of each stage in Alpa's repository, which keeps the best plans it found:
    benchmark/alpa/suite_auto_gpt.py, perf_test_suite, and suite_wresnet.py, perf_test_auto_suite.
    All of these submeshes are within a host."""

    @property
    def n_layers(self) -> int:
        """The number of layers into which the operators are joined, there and here."""
        return sum(n_layers for n_layers, _ in self.published)

    @property
    def published_spans(self) -> tuple[Span, ...]:
        """The stages of Alpa's plan."""
        ends = tuple(accumulate(n_layers for n_layers, _ in self.published))
        return tuple(
            (end - n_layers, end - 1, (1, n_devices))
            for end, (n_layers, n_devices) in zip(ends, self.published, strict=True)
        )


@dataclass(frozen=True, slots=True)
class AblationRow:
    """The times of all variants in one case."""

    case: AblationCase
    times_s: tuple[float | None, ...]
    """Time of a step for each of `VARIANTS`; None if no slicing fits."""

    def ratio(self, variant: int) -> float | None:
        """The time of a variant over that of the search; None if one of them does not fit."""
        search_s, time_s = self.times_s[0], self.times_s[variant]
        return None if search_s is None or time_s is None else time_s / search_s


CASES = (
    AblationCase("gpt-2.6b", "p3.16xlarge", 8, ((2, 2), (2, 2), (4, 4))),
    AblationCase("gpt-6.7b", "p3.16xlarge:2", 16, ((4, 8),) * 2),
    AblationCase("gpt-15b", "p3.16xlarge:4", 32, ((4, 8),) * 4),
    AblationCase("gpt-39b", "p3.16xlarge:8", 64, ((1, 4),) * 16),
    AblationCase("wide-resnet-2b", "p3.16xlarge", 8, ((8, 4),) * 2),
    AblationCase("wide-resnet-4b", "p3.16xlarge:2", 16, ((5, 4), (4, 4), (7, 8))),
    AblationCase("wide-resnet-6.8b", "p3.16xlarge:4", 32, ((5, 8), (4, 8), (4, 8), (3, 8))),
    AblationCase("wide-resnet-13b", "p3.16xlarge:8", 64, ((4, 8),) * 6 + ((5, 8), (4, 8))),
)
"""The cases of the paper's tables 6 and 8 with at least 8 devices."""


def ablation(case: AblationCase) -> AblationRow:
    """Plan one case with each of `VARIANTS`."""
    planned, cluster = model(case.model), Cluster.preset(case.cluster)
    layers = joined(planned, case.n_layers)
    profile = LayerProfile(planned, layers, cluster, planned.n_microbatches)
    even_layers = balanced_runs([1.0] * len(planned.operators), case.n_layers)
    even_profile = LayerProfile(planned, even_layers, cluster, planned.n_microbatches)
    lengths = [n for n in range(1, case.n_layers + 1) if case.n_layers % n == 0]
    equal = [_searched_s(profile, length) for length in lengths]
    times = (
        _searched_s(profile),
        _searched_s(even_profile),
        min((each for each in equal if each is not None), default=None),
        _priced_s(profile, case.published_spans),
    )
    return AblationRow(case, times)


def _searched_s(profile: LayerProfile, length: int | None = None) -> float | None:
    """Time of a step of the best slicing; with `length`, all stages have this number of layers."""

    def cost(first: int, last: int, submesh: Submesh) -> Options | None:
        if length is not None and last - first + 1 != length:
            return None
        return profile.cost(first, last, submesh)

    try:
        return slice_stages(
            len(profile.layers),
            profile.shape,
            profile.n_microbatches,
            cost,
            profile.cluster.device.memory_bytes,
            edges=profile.edges,
            transfer_s=profile.transfer_s,
            alternatives=False,
        ).time_s
    except InfeasibleStagesError:
        return None


def _priced_s(profile: LayerProfile, spans: Sequence[Span]) -> float | None:
    """Time of a step of one given slicing; None if it does not fit."""
    try:
        return price_stages(
            spans,
            profile.n_microbatches,
            profile.cost,
            profile.cluster.device.memory_bytes,
            edges=profile.edges,
            transfer_s=profile.transfer_s,
        ).time_s
    except InfeasibleStagesError:
        return None


def report(results: Sequence[AblationRow]) -> str:
    """The results as a table: the time of a step, and its ratio to that of the search."""
    rows = [["model", "devices", *VARIANTS]]
    for result in results:
        row = [result.case.model, str(result.case.n_devices)]
        for variant, time_s in enumerate(result.times_s):
            ratio = result.ratio(variant)
            text = "nothing fits" if time_s is None else seconds_text(time_s)
            row.append(text if not variant or ratio is None else f"{text}, {ratio:.2f} x")
        rows.append(row)
    return "\n".join(columns(rows, right=(1,)))


def to_json(results: Sequence[AblationRow]) -> str:
    """The results as JSON."""
    return json.dumps(
        [
            {
                "model": result.case.model,
                "cluster": result.case.cluster,
                "devices": result.case.n_devices,
                "layers": result.case.n_layers,
                "seconds": dict(zip(VARIANTS, result.times_s, strict=True)),
            }
            for result in results
        ],
        indent=2,
    )


def bars(results: Sequence[AblationRow], path: str | PathLike[str]) -> None:
    """Draw the steps a second of each variant, relative to the search's, to a PNG or SVG file.

    Raises:
        InvalidInputError: The suffix is neither .png nor .svg.
        MissingExtraError: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    check_picture(path)
    figure = new_figure(10.0, 3.6)
    axes = figure.subplots()
    for variant, (name, colour) in enumerate(zip(VARIANTS, _COLOURS, strict=True)):
        ratios = [result.ratio(variant) for result in results]
        heights = [0.0 if ratio is None else 1 / ratio for ratio in ratios]
        positions = [at + 0.21 * (variant - 1.5) for at in range(len(results))]
        axes.bar(positions, heights, width=0.19, color=colour, label=name)
        for at, ratio in zip(positions, ratios, strict=True):
            if ratio is None:
                axes.text(at, 0.02, "x", ha="center")
    labels = [f"{result.case.model}\n{result.case.n_devices} GPUs" for result in results]
    axes.set_xticks(range(len(results)), labels, fontsize=8)
    axes.set_ylabel("steps a second, search = 1")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False)
    save_figure(figure, path, "stagecut")
