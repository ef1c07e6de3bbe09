"""Alpa's ablation of inter-operator parallelism (section 8.3, figure 9), in simulation.

Three ways to plan, on the paper's models, cluster, batches and numbers of layers:

- *search*: operators are joined into layers by Eq. 6, stages found by Eq. 2 to 5 ("DP" there);
- *equal operators*: layers of equally many operators, stages found as before;
- *equal layers*: layers by Eq. 6, stages restricted to equally many layers, on any submeshes.

Beside them stands the plan that Alpa's repository keeps for the same case, priced here. All prices
are those of `stagecut.profiles`: what is compared is how well plans serve one objective, not what
the paper's machines made of it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from os import PathLike

from costmodel import Cluster
from shardspec.amounts import columns, seconds_text

from stagecut.base.types import Span, Submesh
from stagecut.cli.demo import joined
from stagecut.errors import InfeasibleStagesError
from stagecut.models import model
from stagecut.plan.baseline import balanced_runs
from stagecut.plan.picture import check_picture, new_figure, save
from stagecut.plan.price_stages import price_stages
from stagecut.profiles import LayerProfile, Options
from stagecut.slice.slice import slice_stages

VARIANTS = ("search", "equal operators", "equal layers", "Alpa's plan")
_COLOURS = ("#3182bd", "#fdae6b", "#bdbdbd", "#a1d99b")


@dataclass(frozen=True, slots=True)
class AblationCase:
    """A model on a cluster."""

    model: str
    cluster: str
    n_devices: int
    published: tuple[tuple[int, int], ...]
    """Layers and GPUs of each stage in Alpa's repository, which keeps the best plans it found:
    benchmark/alpa/suite_auto_gpt.py, perf_test_suite, and suite_wresnet.py, perf_test_auto_suite.
    All of its submeshes are within a host."""

    @property
    def n_layers(self) -> int:
        """Into which the operators are joined, there and here."""
        return sum(n_layers for n_layers, _ in self.published)

    @property
    def published_spans(self) -> tuple[Span, ...]:
        """The same as stages."""
        ends = tuple(accumulate(n_layers for n_layers, _ in self.published))
        return tuple(
            (end - n_layers, end - 1, (1, n_devices))
            for end, (n_layers, n_devices) in zip(ends, self.published, strict=True)
        )


@dataclass(frozen=True, slots=True)
class AblationRow:
    """What the three take in one case."""

    case: AblationCase
    times_s: tuple[float | None, ...]
    """Of a step, of each variant; None where nothing fits."""

    def ratio(self, variant: int) -> float | None:
        """How many times as long a variant takes as the search."""
        best, its = self.times_s[0], self.times_s[variant]
        return None if best is None or its is None else its / best


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
"""Tables 6 and 8 of the paper, from 8 devices on."""


def ablation(case: AblationCase) -> AblationRow:
    """Plan one case in each of the ways."""
    of, cluster = model(case.model), Cluster.preset(case.cluster)
    counted = balanced_runs([1.0] * len(of.operators), case.n_layers)
    profile = LayerProfile(of, joined(of, case.n_layers), cluster, of.n_microbatches)
    every = LayerProfile(of, counted, cluster, of.n_microbatches)
    lengths = [n for n in range(1, case.n_layers + 1) if case.n_layers % n == 0]
    equal = [_searched_s(profile, length) for length in lengths]
    times = (
        _searched_s(profile),
        _searched_s(every),
        min((each for each in equal if each is not None), default=None),
        _priced_s(profile, case.published_spans),
    )
    return AblationRow(case, times)


def _searched_s(profile: LayerProfile, length: int | None = None) -> float | None:
    """A step of the best slicing; with a length, of those whose stages all have so many layers."""

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
    """A step of one slicing."""
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
    """A table: seconds of a step, and how many times as long as the search's."""
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
    """The same for programs."""
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
    """Steps a second of each, relative to the search's, as a PNG or SVG file.

    Raises:
        InvalidInputError: A suffix other than .png and .svg.
        MissingExtraError: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    check_picture(path)
    figure = new_figure(10.0, 3.6)
    axes = figure.subplots()
    for variant, (name, colour) in enumerate(zip(VARIANTS, _COLOURS, strict=True)):
        ratios = [result.ratio(variant) for result in results]
        heights = [0.0 if ratio is None else 1 / ratio for ratio in ratios]
        places = [place + 0.21 * (variant - 1.5) for place in range(len(results))]
        axes.bar(places, heights, width=0.19, color=colour, label=name)
        for place, ratio in zip(places, ratios, strict=True):
            if ratio is None:
                axes.text(place, 0.02, "x", ha="center")
    labels = [f"{result.case.model}\n{result.case.n_devices} GPUs" for result in results]
    axes.set_xticks(range(len(results)), labels, fontsize=8)
    axes.set_ylabel("steps a second, search = 1")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False)
    save(figure, path)
