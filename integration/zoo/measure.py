"""Plan a case of the zoo, run it if it is small, and keep the result as JSON."""

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
"""Plans that the searched plan is compared with; the same cost model prices all of them."""


@dataclass(frozen=True, slots=True)
class Row:
    """The result of a case."""

    name: str
    n_parameters: int
    cluster: str
    stages: tuple[tuple[int, ...], ...]
    """The shape of each stage's mesh."""

    schedule: str
    microbatches: int
    strategy: str
    """Where the plan comes from: the search, or a baseline that is as fast."""

    step_s: float
    """Predicted time of a step."""

    memory_bytes: int
    """Predicted peak memory of the device that needs most."""

    baselines_s: dict[str, float | None]
    """Predicted step of each baseline; None if it does not fit or cannot be made."""

    whole_share: float
    """The share of the step's FLOP in primitives without a rule."""

    difference: float | None
    """The largest difference in five steps, by `check.largest_difference`; None if not run."""


def measure_small(name: str) -> Row:
    """Plan a small case, take five steps, and compare with one device."""
    case = SMALL[name]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "planned without microbatches")
        checked = check(
            case.example(),
            case.cluster,
            microbatches=case.microbatches,
            reference=case.reference(),
        )
    return _row(name, case, checked.plan, checked.whole_share, checked.difference)


def measure_full(name: str) -> Row:
    """Plan a model at the size of a paper; this needs neither devices nor weights."""
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
    """Write the result of a case, in place of an earlier one."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{row.name.replace(',', '').replace(' ', '_')}.json"
    file.write_text(json.dumps(asdict(row), indent=1) + "\n", encoding="utf-8")


def read(folder: Path) -> dict[str, Row]:
    """The results that a folder has, by name, in the order of the cases."""
    rows = {}
    for file in folder.glob("*.json"):
        data = json.loads(file.read_text(encoding="utf-8"))
        data["stages"] = tuple(map(tuple, data["stages"]))
        rows[data["name"]] = Row(**data)
    return {name: rows[name] for name in (*SMALL, *FULL) if name in rows}
