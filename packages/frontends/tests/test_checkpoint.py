"""State that is saved and restored: on the same plan, on others, after a save that was cut off."""

import functools
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import launching
import numpy as np
import optax
import pytest
from costmodel import Cluster
from frontends.errors import CheckpointError, PlanError
from frontends.jax import ParallelStep, latest, parallelize, restore, save
from frontends.jax.testing import adamw

EXAMPLE = adamw()
FOUR = Cluster.preset("two-hosts").resized(devices_per_host=2)
EIGHT = Cluster.preset("two-hosts").resized(devices_per_host=4)


def first_state() -> Any:
    return EXAMPLE.params, EXAMPLE.opt_state


@functools.cache
def planned(strategy: str, cluster: Cluster) -> ParallelStep:
    step = parallelize(EXAMPLE.function, cluster=cluster, microbatches=2, strategy=strategy)
    step.prepare(*EXAMPLE.arguments)
    return step


def train(step: ParallelStep, state: Any, n_steps: int) -> tuple[Any, list[float]]:
    losses = []
    for _ in range(n_steps):
        *state, loss = step(*state, EXAMPLE.batch)
        losses.append(float(loss))
    return tuple(state), losses


def assert_equal(ours: Any, theirs: Any) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """A run of two stages that was saved after two steps, and its losses after that."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    step = planned("equal_layers", FOUR)
    assert len(step.plan.stages) == 2
    state, _ = train(step, step.init(first_state), 2)
    save(folder, 2, state)
    _, losses = train(step, state, 3)
    return folder, losses


def test_the_same_plan_goes_on_bit_for_bit(run: tuple[Path, list[float]]) -> None:
    folder, expected = run
    step = planned("equal_layers", FOUR)
    state = restore(folder, step.abstract_state(first_state))
    for leaf, home in zip(
        jax.tree.leaves(state), jax.tree.leaves(step.abstract_state(first_state)), strict=True
    ):
        assert leaf.sharding.is_equivalent_to(home.sharding, leaf.ndim)
    assert train(step, state, 3)[1] == expected


@pytest.mark.parametrize(
    ("strategy", "cluster", "n_stages"),
    [("zero", FOUR, 1), ("megatron", EIGHT, 1), ("equal_layers", EIGHT, 2)],
)
def test_another_plan_or_mesh_goes_on(
    run: tuple[Path, list[float]], strategy: str, cluster: Cluster, n_stages: int
) -> None:
    folder, expected = run
    step = planned(strategy, cluster)
    assert len(step.plan.stages) == n_stages
    assert step.plan.cluster == "two-hosts"
    state = restore(folder, step.abstract_state(first_state))
    np.testing.assert_allclose(train(step, state, 3)[1], expected, rtol=1e-5)


def test_a_step_reads_into_its_own_layouts(run: tuple[Path, list[float]], tmp_path: Path) -> None:
    folder, expected = run
    step = planned("equal_layers", EIGHT)
    state = step.restore(folder, jax.eval_shape(first_state))
    homes = jax.tree.leaves(step.abstract_state(first_state))
    step.save(tmp_path, 5, state)
    whole = step.state_dict(step.restore(tmp_path, state, 5))
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(whole))
    again = step.load_state_dict(whole)
    for leaf, home in zip(jax.tree.leaves(again), homes, strict=True):
        assert leaf.sharding.is_equivalent_to(home.sharding, leaf.ndim)
    assert_equal(step.state_dict(again), whole)
    np.testing.assert_allclose(train(step, again, 3)[1], expected, rtol=1e-5)
    with pytest.raises(PlanError, match="first argument that is not batch, or a tuple of its"):
        step.load_state_dict(whole[1])


def test_whole_state_keeps_keys_and_weak_types() -> None:
    def function(state: Any, batch: Any) -> Any:
        weights, key, count = state
        noise = 0.01 * jax.random.normal(key, weights.shape)
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch @ (w + noise)) ** 2))(weights)
        return (weights - gradient, jax.random.split(key)[0], count + 1), loss

    step = parallelize(function, cluster=FOUR, microbatches=1, strategy="zero")
    state, batch = (jnp.ones((8, 8)), jax.random.key(0), 0), np.ones((8, 8), np.float32)
    for _ in range(2):
        state, _ = step(state, batch)
    whole = step.state_dict(state)
    assert whole[2] == 2
    again = step.load_state_dict(whole)
    assert again[2].weak_type
    assert again[1].dtype == state[1].dtype
    assert float(step(again, batch)[1]) == float(step(state, batch)[1])
    assert step.verify(again, batch).results < 1e-5
    assert len(step.variants) == 1


def test_what_arrays_may_be(tmp_path: Path) -> None:
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.masked(optax.adamw(optax.linear_schedule(0.1, 0.0, 5)), {"w": True, "b": False}),
        optax.ema(0.9),
    )
    state = {
        "bfloat16": jnp.linspace(0, 1, 6, dtype=jnp.bfloat16).reshape(2, 3),
        "nested": ({"key": jax.random.split(jax.random.key(0), 3)}, [jnp.zeros((0, 3)), None]),
        "numpy": np.arange(3, dtype=np.int16),
        "number": jnp.asarray(7),
        "with/slash": {"and.point": jnp.ones(1)},
        "numbered": {5: jnp.zeros(2)},
        "optimizer": optimizer.init({"w": jnp.ones((3, 3)), "b": jnp.ones(3)}),
    }
    save(tmp_path, 0, state)
    found = restore(tmp_path, state)
    keys, expected = found["nested"][0].pop("key"), state["nested"][0].pop("key")  # type: ignore[index]
    assert keys.dtype == expected.dtype
    assert jnp.array_equal(jax.random.key_data(keys), jax.random.key_data(expected))
    assert_equal(found, state)


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    assert latest(folder) is None
    for number in (1, 5, 6):
        save(folder, number, {"a": jnp.full(3, number)}, keep=2)
    assert latest(folder) == 6
    like = {"a": jnp.zeros(3, int)}
    assert restore(folder, like)["a"][0] == 6
    assert restore(folder, like, 5)["a"][0] == 5
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 1 in .*has: \[5, 6\]"):
        restore(folder, like, 1)
    for number in (5, 6):
        with pytest.raises(CheckpointError, match=rf"got number={number}, .* has one of step 6"):
            save(folder, number, like)


def test_rejects_a_folder_without_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no folder .*nowhere: save makes it"):
        restore(tmp_path / "nowhere", {})
    with pytest.raises(CheckpointError, match=r"there is no checkpoint in .*it has: \[\]"):
        restore(tmp_path, {})
    assert latest(tmp_path) is None


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"a": jnp.zeros(3)}, r"has float32\[2, 3\] at a, where float32\[3\] is wanted"),
        ({"a": jnp.zeros((2, 3), int)}, r"float32\[2, 3\] at a, where int32\[2, 3\] is wanted"),
        ({"b": jnp.zeros((2, 3))}, r"float32\[2, 3\] at a, where nothing is wanted"),
        ({"a": jnp.zeros((2, 3)), "c": jnp.zeros(1)}, r"nothing at c, where float32\[1\] is wan"),
    ],
)
def test_rejects_other_state_than_was_saved(tmp_path: Path, like: Any, message: str) -> None:
    save(tmp_path, 0, {"a": jnp.zeros((2, 3))})
    with pytest.raises(CheckpointError, match=message):
        restore(tmp_path, like)


def test_rejects_two_leaves_of_one_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"points between; got two of a\.b: name them other"):
        save(tmp_path, 0, {"a.b": jnp.ones(1), "a": {"b": jnp.zeros(1)}})
    assert latest(tmp_path) is None


KILLED = """
import resource, signal, sys
import frontends.jax as mw, jax.numpy as jnp, numpy as np
mw.init(1)
mw.save(sys.argv[1], 1, {"a": jnp.zeros(1 << 20)})
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the process dies in the write that is too much
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
noise = np.random.default_rng(0).random(1 << 20, np.float32)  # it does not get smaller by packing
mw.save(sys.argv[1], 2, {"a": jnp.asarray(noise)})
"""


def test_a_save_that_was_cut_off_leaves_the_one_before(tmp_path: Path) -> None:
    ended = launching.run([sys.executable, "-c", KILLED, str(tmp_path)], deadline_s=300)
    assert ended.status == -25, ended.output  # SIGXFSZ
    assert any(path.name.startswith("2") for path in tmp_path.iterdir()), "it had begun"
    like = {"a": jnp.zeros(1 << 20)}
    assert latest(tmp_path) == 1
    assert_equal(restore(tmp_path, like), like)
    save(tmp_path, 2, {"a": like["a"] + 2})
    assert restore(tmp_path, like)["a"][0] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


def test_says_how_to_install_orbax(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['orbax'] = None  # as where it is not installed\n"
        "import frontends, frontends.jax as mw\n"
        "try: mw.latest(sys.argv[1])\n"
        "except frontends.CheckpointError as error: print(error)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    ended = launching.run(command, deadline_s=300)
    assert "not installed: pip install 'meshwright-frontends[checkpoint]'" in ended.output
