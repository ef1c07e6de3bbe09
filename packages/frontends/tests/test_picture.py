from dataclasses import replace
from pathlib import Path

import pytest
from frontends.answer.plan import Plan
from frontends.errors import OutputError
from frontends.report.picture import draw_losses, draw_plan, draw_timeline
from shardspec import Mesh


@pytest.fixture(
    params=["two stages", "one stage", "no collectives", "five stages", "nothing costs"]
)
def plan(request: pytest.FixtureRequest, example_plan: Plan) -> Plan:
    first, second = example_plan.stages
    match request.param:
        case "one stage":
            return replace(example_plan, stages=(first,), transfers=())
        case "no collectives":
            bare = tuple(replace(stage, collectives=()) for stage in example_plan.stages)
            return replace(example_plan, stages=bare)
        case "five stages":
            meshes = [Mesh((2, 8), ("x", "y"), tuple(range(16 * i, 16 * i + 16))) for i in range(5)]
            many = tuple(replace(second, mesh=mesh) for mesh in meshes)
            past = tuple(
                replace(t, destination=4 * t.destination, source=4 * t.source)
                for t in example_plan.transfers
            )
            return replace(example_plan, stages=many, transfers=past)
        case "nothing costs":
            free = [
                replace(
                    s, forward_s=0.0, backward_s=0.0, apply_s=0.0, memory_bytes=0, collectives=()
                )
                for s in example_plan.stages
            ]
            return replace(example_plan, stages=tuple(free), transfers=(), memory_limit_bytes=0)
    return example_plan


def test_draws_any_plan(plan: Plan, tmp_path: Path) -> None:
    draw_plan(plan, tmp_path / "plan.png")
    draw_timeline(plan, tmp_path / "timeline.png")
    for name in ("plan.png", "timeline.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_the_same_plan_gives_the_same_file(example_plan: Plan, tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        draw_plan(example_plan, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"<svg" in (tmp_path / "a.svg").read_bytes()


def test_draws_losses_alone_and_beside_those_of_a_single_device(tmp_path: Path) -> None:
    draw_losses([3.0, 2.0, 1.0], tmp_path / "alone.png")
    draw_losses([3.0, 2.0, 1.0], tmp_path / "beside.png", single_device=[3.0, 2.0])
    assert (tmp_path / "alone.png").read_bytes() != (tmp_path / "beside.png").read_bytes()


@pytest.mark.parametrize("draw", [draw_plan, draw_timeline])
def test_names_a_picture_that_cannot_be_written(
    draw: object, example_plan: Plan, tmp_path: Path
) -> None:
    assert callable(draw)
    with pytest.raises(OutputError, match=r"ends in \.png"):
        draw(example_plan, tmp_path / "plan.txt")
    with pytest.raises(OutputError, match=r"written to a file; .*No such file"):
        draw(example_plan, tmp_path / "nowhere" / "plan.png")
