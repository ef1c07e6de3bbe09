"""Plan a case of the zoo, run it if it is small, and keep what is found as JSON."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import frontends.jax as mw
from frontends import Plan
from frontends.jax.rules.rules import whole_share

from zoo.cases import FULL, SMALL, Case
from zoo.check import check

BASELINES = ("data_parallel", "zero2", "zero", "megatron", "equal_layers")
"""Plans that the search is compared with, all of them priced by the same model."""


@dataclass(frozen=True, slots=True)
class Row:
    """What became of a case."""

    name: str
    n_parameters: int
    cluster: str
    stages: tuple[tuple[int, ...], ...]
    """The shape of each stage's mesh."""

    schedule: str
    microbatches: int
    strategy: str
    """What made the plan: the search, or a baseline that is as fast."""

    step_s: float
    """Predicted."""

    memory_bytes: int
    """Of the device that needs most, predicted."""

    baselines_s: dict[str, float | None]
    """The step of each other plan; None if it does not fit or cannot be made."""

    whole_share: float
    """Of the step's FLOP, those of primitives without a rule."""

    difference: float | None
    """After five steps; see `check.largest_difference`. None if it was not run."""


def measure_small(name: str) -> Row:
    """Plan a small case, and take five steps."""
    case = SMALL[name]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "planned without microbatches")
        found = check(
            case.example(),
            case.cluster,
            microbatches=case.microbatches,
            reference=case.reference(),
        )
    return _row(name, case, found.plan, found.whole_share, found.difference)


def measure_full(name: str) -> Row:
    """Plan a model of a paper's size; neither devices nor weights are needed."""
    case = FULL[name]
    example = case.example()
    planned = mw.plan_for(
        example.step,
        example.arguments,
        case.cluster,
        batch_argnums=example.batch_argnums,
        microbatches=case.microbatches,
        memory_bytes=case.memory_bytes,
    )
    share = whole_share(planned.trace.equations.values())
    return _row(name, case, planned.plan, share, None)


def _row(name: str, case: Case, plan: Plan, share: float, difference: float | None) -> Row:
    others = {other.name: other.step_s for other in plan.alternatives}
    if plan.strategy in BASELINES:
        others[plan.strategy] = plan.step_s
    return Row(
        name,
        case.n_parameters,
        plan.cluster,
        tuple(stage.mesh.shape for stage in plan.stages),
        plan.schedule,
        plan.microbatches,
        plan.strategy,
        plan.step_s,
        max(stage.memory_bytes for stage in plan.stages),
        {baseline: others.get(baseline) for baseline in BASELINES},
        share,
        difference,
    )


def keep(row: Row, folder: Path) -> None:
    """Write what is known of a case over what was known before."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{row.name.replace(',', '').replace(' ', '_')}.json"
    file.write_text(json.dumps(asdict(row), indent=1) + "\n", encoding="utf-8")


def read(folder: Path) -> dict[str, Row]:
    """What is known, by name, in the order of the cases."""
    found = {}
    for file in folder.glob("*.json"):
        data = json.loads(file.read_text(encoding="utf-8"))
        data["stages"] = tuple(map(tuple, data["stages"]))
        found[data["name"]] = Row(**data)
    return {name: found[name] for name in (*SMALL, *FULL) if name in found}
