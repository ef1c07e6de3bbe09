"""A schedule of a user, from its registration to plans: what names do elsewhere, it does."""

from dataclasses import replace
from pathlib import Path

import pipesched
import pytest
from costmodel import Cluster
from frontends.answer.plan import Plan
from frontends.cli.commands import main
from frontends.errors import PlanError, VerificationError
from frontends.jax.testing import EXAMPLES
from frontends.layers.layers import LayeredStep, layer
from frontends.plan.schedule import PLAIN, names_that_run, schedule_of
from frontends.search.plan_options import PlanOptions
from frontends.search.planner import Planner
from pipesched import ArgumentError, Schedule

SLOW = Cluster.preset("two-hosts").resized(n_hosts=2, devices_per_host=2)


def in_pairs(n_stages: int, n_microbatches: int) -> Schedule:
    """1F1B that holds two more, of an even number of stages."""
    if n_stages % 2:
        raise ArgumentError(f"in-pairs has pairs of stages; got n_stages={n_stages}")
    depth = [n_stages - stage + 2 for stage in range(n_stages)]
    made = pipesched.make("eager-1f1b", n_stages, n_microbatches, depth=depth)
    return replace(made, name="in-pairs")


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    pipesched.register_schedule("in-pairs", in_pairs)


@pytest.fixture(scope="module")
def step() -> LayeredStep:
    return layer(EXAMPLES["gpt"]().trace(4).step, 4)


@pytest.mark.parametrize("strategy", ["equal_layers", "search"])
def test_a_registered_schedule_is_planned_with_what_it_holds(
    step: LayeredStep, strategy: str
) -> None:
    options = {"strategy": strategy, "memory_bytes": SLOW.device.memory_bytes}
    plan = Planner(step, SLOW, PlanOptions(schedule="in-pairs", **options)).best()
    assert len(plan.stages) in (1, 2)
    plan.verify()
    if strategy == "equal_layers":
        assert plan.schedule == "in-pairs"
        assert [s.sharding.options.in_flight for s in plan.stages] == [4, 3]
        assert schedule_of(plan) == in_pairs(2, 4)


def test_a_plan_that_asks_for_none_does_not_depend_on_what_is_registered() -> None:
    assert "in-pairs" in names_that_run()
    assert PLAIN[0] == "1f1b"
    assert "in-pairs" not in PLAIN


def test_a_saved_plan_needs_its_schedule_registered(step: LayeredStep, tmp_path: Path) -> None:
    plan = Planner(step, SLOW, PlanOptions(strategy="equal_layers", schedule="in-pairs")).best()
    replace(plan, schedule="of-another").save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    message = r"this one knows gpipe, .*, in-pairs, and the plan has 'of-another': import the"
    with pytest.raises(PlanError, match=message):
        schedule_of(loaded)
    with pytest.raises(VerificationError, match=message):
        loaded.verify()


def test_the_command_plans_with_a_schedule_of_the_model_s_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import replace\n"
        "import jax, jax.numpy as jnp, pipesched\n"
        "def of_the_file(*sizes):\n"
        "    return replace(pipesched.make('gpipe', *sizes), name='of-the-file')\n"
        "pipesched.register_schedule('of-the-file', of_the_file)\n"
        "def step(w, x):\n"
        "    loss, g = jax.value_and_grad(lambda w: jnp.mean(((x @ w[0]) @ w[1]) ** 2))(w)\n"
        "    return [a - b for a, b in zip(w, g)], loss\n"
        "def model():\n"
        "    return step, ([jnp.ones((8, 8))] * 2, jnp.ones((8, 8)))\n"
    )
    model = f"{tmp_path / 'mine.py'}:model"
    arguments = ["plan", "--model", model, "--devices", "2", "--hosts", "2", "--microbatches", "2"]
    with pytest.raises(SystemExit) as stopped:
        main([*arguments, "--strategy", "equal_layers", "--schedule", "of-the-file"])
    assert not stopped.value.code
    assert "of-the-file" in capsys.readouterr().out
