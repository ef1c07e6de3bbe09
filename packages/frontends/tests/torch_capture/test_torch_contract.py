"""What a step read is compared with what it was; containers are taken apart and put together."""

import collections
import copy
import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import frontends.torch as mw
import pytest
import torch
from costmodel import Cluster
from frontends import BatchError, PlanError, UnsupportedStepError
from frontends.torch.base.frozen import freeze
from frontends.torch.base.trees import flatten, remove, removed
from frontends.torch.capture.gone import GoneGradient
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

torch.set_num_threads(1)
CLUSTER = Cluster.preset("virtual-cpu").resized(devices_per_host=2)
QUICK: dict[str, Any] = {"cluster": CLUSTER, "strategy": "data_parallel", "microbatches": 1}


@dataclasses.dataclass
class Record:
    x: Any
    scale: float = 1.0


class Pair(NamedTuple):
    left: Any
    right: Any


class Plain:
    def __init__(self, x: Any) -> None:
        self.x = x


LEAVES = st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.text(), st.none())


def nodes(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.dictionaries(st.text(max_size=3), inner, max_size=3)
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        keys,
        keys.map(collections.OrderedDict),
        keys.map(collections.UserDict),
        st.builds(Record, inner, st.floats(0, 1)),
        st.builds(Pair, inner, inner),
        st.builds(Plain, inner),
    )


TREES = st.recursive(LEAVES, nodes, max_leaves=8)


@given(TREES)
def test_trees_are_put_together_as_they_were(tree: Any) -> None:
    leaves, structure = flatten(tree)
    again = structure.fill(iter([leaf.value for leaf in leaves]))
    found, same = flatten(again)
    assert same == structure
    assert [leaf.path for leaf in found] == [leaf.path for leaf in leaves]
    assert all(a.value is b.value for a, b in zip(found, leaves, strict=True))
    assert type(again) is type(tree)


@given(TREES, TREES)
def test_structures_are_equal_only_where_leaves_are_in_the_same_places(a: Any, b: Any) -> None:
    (ours, one), (theirs, other) = flatten(a), flatten(b)
    if one == other:
        assert [leaf.path for leaf in ours] == [leaf.path for leaf in theirs]


def test_paths_are_as_the_user_would_write_them() -> None:
    leaves, _ = flatten({"x": [Record(Pair(1, 2))]})
    assert [leaf.path for leaf in leaves] == [
        "['x'][0].x.left",
        "['x'][0].x.right",
        "['x'][0].scale",
    ]


def test_a_tree_that_contains_itself_is_refused() -> None:
    tree: list[Any] = []
    tree.append(tree)
    with pytest.raises(BatchError, match=r"a batch is a tree that ends; .* contains itself"):
        flatten(tree)


@given(st.dictionaries(st.text(max_size=2), LEAVES, min_size=1, max_size=4), st.data())
def test_what_is_taken_out_of_a_batch_is_found(items: dict[str, Any], data: st.DataObject) -> None:
    tree = (collections.UserDict(items), 1)
    leaves, structure = flatten(tree)
    now = structure.fill(iter([leaf.value for leaf in leaves]))
    key = data.draw(st.sampled_from(sorted(items)))
    del now[0][key]
    ((path, found),) = removed(structure, now, [leaf.value for leaf in leaves])
    remove(tree, path, found)
    assert dict(tree[0]) == {k: v for k, v in items.items() if k != key}


CONTAINERS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.lists(inner, max_size=3).map(collections.deque),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=2).map(
            lambda items: types.SimpleNamespace(**items)
        ),
    ),
    max_leaves=6,
)


@given(CONTAINERS, CONTAINERS)
def test_frozen_values_hold_for_equal_ones_alone(value: Any, other: Any) -> None:
    frozen = freeze(value)
    assert frozen.holds(value)
    if not isinstance(value, types.SimpleNamespace):
        assert frozen.holds(copy.copy(value))
    if frozen.holds(other):
        assert type(other) is type(value)
        assert other == value


@given(st.lists(CONTAINERS, min_size=1, max_size=3), st.integers(0, 9))
def test_what_was_changed_is_seen_and_undone(values: list[Any], change: int) -> None:
    frozen, before = freeze(values), copy.deepcopy(values)
    if change % 3 == 0:
        values.append(change)
    elif change % 3 == 1:
        values[0] = object()
    else:
        values.clear()
    assert not frozen.holds(values)
    frozen.restore()
    assert values == before
    assert frozen.holds(values)


@pytest.mark.parametrize("of", [dict.keys, dict.values, dict.items, list, tuple, dict])
def test_large_containers_are_the_same_while_they_hold_the_same(of: Callable[..., Any]) -> None:
    table = {i: float(i) for i in range(100_001)}
    value = of(table)
    frozen = freeze(value)
    assert frozen.holds(of(table))
    assert [id(each.value) for each in frozen.containers()] == [id(value)]
    table[7] = 7.5
    if of in (dict.values, dict.items, dict):
        assert not frozen.holds(of(table))


def test_numbers_of_other_types_are_others() -> None:
    assert not freeze(1).holds(1.0)
    assert not freeze(True).holds(1)
    assert freeze(float("nan")).holds(float("nan"))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.beta, self.seen = nn.Linear(4, 3), 0.0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.body(x) * (1 + self.beta)


def both(build: Callable[[Any, Any], Callable[..., Any]], n_steps: int = 4) -> Any:
    """Results of steps run eagerly, and here; `build` makes a step of a model and its optimizer."""
    results = []
    for ours in (False, True):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        step = build(model, optimizer)
        if ours:
            step = mw.parallelize_step(step, model, optimizer, **QUICK)
        torch.manual_seed(1)
        losses = []
        for i in range(n_steps):
            model.beta = 0.1 * (i // 2)
            losses.append(float(step(torch.randn(4 - 2 * (i == 3), 4))))
        results.append((losses, model.seen, model.body.weight.detach().clone(), step))
    return results


def test_attributes_counters_and_short_batches_are_variants() -> None:
    def build(model: Any, optimizer: Any) -> Callable[..., Any]:
        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    eager, ours = both(build)
    assert ours[0] == pytest.approx(eager[0], rel=1e-5)
    assert ours[1] == eager[1] == 4
    assert torch.allclose(ours[2], eager[2], rtol=1e-5)
    assert len(ours[3].variants) == 4  # the counter is another number at each call


def test_a_warning_says_what_keeps_changing() -> None:
    model = Net()
    step = mw.parallelize(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        lambda model, x: model(x).square().mean(),
        **QUICK,
    )
    for _ in range(8):
        step(torch.ones(2, 4))
    with pytest.warns(UserWarning, match=r"changed last: Net.seen, 8 and then|Net.seen, \d and"):
        step(torch.ones(2, 4))
    step(torch.ones(2, 4))
    assert model.seen == 10
    assert len(step.variants) == 8


def test_a_number_that_changes_in_the_batch_is_no_variant() -> None:
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(layer.parameters(), 0.1)
    step = mw.parallelize(
        layer, optimizer, lambda model, b: b["by"] * model(b["x"]).square().mean(), **QUICK
    )
    x = torch.ones(2, 4)
    first = step({"x": x, "by": 1.0})
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.param_groups[0]["weight_decay"] = 0.2
    assert float(step({"x": x, "by": 3.0})) != pytest.approx(float(first))
    assert len(step.variants) == 1


def test_a_refused_step_leaves_everything_as_it_was() -> None:
    model, log, generator = Net(), [1.0], torch.get_rng_state()
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: torch.Tensor) -> None:
        log.append(2.0)
        model.beta = 7.0
        loss = functional.dropout(model(x), 0.5).square().mean()
        loss.backward()
        optimizer.step()
        log.extend([3.0] * int(loss))

    ours = mw.parallelize_step(step, model, optimizer, **QUICK)
    weight = model.body.weight.detach().clone()
    with pytest.raises(UnsupportedStepError, match="asks for a number that is not known"):
        ours(torch.ones(2, 4))
    assert (log, model.beta, model.seen) == ([1.0], 0.0, 0)
    assert torch.equal(model.body.weight, weight)
    assert torch.equal(torch.get_rng_state(), generator)
    assert model.body.weight.grad is None
    assert not optimizer.state


def test_gradients_that_were_used_say_so() -> None:
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    step = mw.parallelize(layer, optimizer, lambda model, x: model(x).square().mean(), **QUICK)
    step(torch.ones(2, 4))
    gradient = layer.weight.grad
    assert isinstance(gradient, GoneGradient)
    assert gradient.shape == layer.weight.shape
    for use in (
        lambda: gradient.norm(),
        lambda: nn.utils.clip_grad_norm_(layer.parameters(), 1.0),
        lambda: layer(torch.ones(1, 4)).sum().backward(),
        optimizer.step,
    ):
        with pytest.raises(PlanError, match="gradients stay on the devices of a step that ends"):
            use()
    copied = copy.deepcopy(layer)
    assert torch.equal(copied.weight, layer.weight)
    optimizer.zero_grad()
    layer(torch.ones(1, 4)).sum().backward()
    assert layer.weight.grad.shape == layer.weight.shape


def test_what_is_no_model_and_no_optimizer_is_refused() -> None:
    layer = nn.Linear(4, 3)
    loss: Any = lambda model, x: model(x).mean()  # noqa: E731
    nothing: Any = None
    with pytest.raises(PlanError, match=r"has an optimizer, .* got NoneType"):
        mw.parallelize(layer, nothing, loss, torch.ones(2, 4), **QUICK)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    with pytest.raises(PlanError, match=r"a model is a torch.nn.Module; got function"):
        mw.parallelize(loss, optimizer, loss, torch.ones(2, 4), **QUICK)


def test_a_batch_that_is_changed_is_refused_and_nothing_is_left() -> None:
    model = Net()

    def loss(model: Any, batch: Any) -> torch.Tensor:
        batch["made"] = model(batch["x"])
        return batch["made"].square().mean()

    batch = {"x": torch.ones(2, 4)}
    with pytest.raises(UnsupportedStepError, match="a step leaves its batch as it is"):
        mw.parallelize(model, torch.optim.SGD(model.parameters(), 0.1), loss, batch, **QUICK)
    assert (model.seen, list(batch)) == (0, ["x"])


def test_what_cannot_be_made_anew_at_each_call_is_refused() -> None:
    class Losses(list[float]):
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise TypeError("no copies")

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss(model: Any, batch: Any) -> torch.Tensor:
        model.losses = Losses()
        return model(batch).square().mean()

    with pytest.raises(UnsupportedStepError, match=r"keeps a Losses, .*\(TypeError: no copies\)"):
        mw.parallelize(model, optimizer, loss, torch.ones(2, 4), **QUICK)
    assert not hasattr(model, "losses")


@functools.lru_cache
def table(n: int) -> torch.Tensor:
    return torch.arange(n, dtype=torch.float32).cos()


def test_functions_that_remember_give_tensors_with_values() -> None:
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    before = table(3).clone()
    step = mw.parallelize(
        layer, optimizer, lambda model, x: (model(x) * table(3)).square().mean(), **QUICK
    )
    single = copy.deepcopy(layer)
    expected = (single(torch.ones(2, 4)) * before).square().mean()
    assert float(step(torch.ones(2, 4))) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert torch.equal(table(3), before)


def test_functions_that_remember_are_looked_into_again_when_they_were_cleared() -> None:
    """Although they have computed as many results as before."""
    batches = [torch.ones(2, 2), torch.ones(4, 2)]
    model = nn.Linear(2, 1)
    is_plain = True

    @functools.cache
    def weights(n: int) -> Any:
        return [2.0] if is_plain else [torch.full((n,), 3.0)]

    def loss(model: nn.Linear, batch: torch.Tensor) -> torch.Tensor:
        return (model(batch).mean() * weights(1)[0]).mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    step = mw.parallelize(model, optimizer, loss, **QUICK)
    for batch in batches:
        weights.cache_clear()
        expected = loss(model, batch)
        torch.testing.assert_close(step(batch), expected.detach())
        is_plain = False


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("kind", [list, dict])
def test_what_functions_remember_is_what_a_step_was_captured_with(
    kind: type, size: int | None
) -> None:
    """Until they are cleared, whatever they read has become since."""
    factors = [2.0]

    @functools.lru_cache(maxsize=size)
    def factor(name: str) -> Any:
        return kind(enumerate(factors)) if kind is dict else kind(factors)

    model, batch = nn.Linear(2, 1), torch.ones(2, 2)

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).mean() * factor("a")[0]

    factor("a")
    step = mw.parallelize(model, torch.optim.SGD(model.parameters(), lr=0.0), loss, **QUICK)
    one = model(batch).mean().detach()
    torch.testing.assert_close(step(batch), one * 2)
    factors[0] = 3.0
    torch.testing.assert_close(step(batch), one * 2)
    factor("b")
    assert len(step.variants) == 1
    factor.cache_clear()
    torch.testing.assert_close(step(batch), one * 3)
    factors[0] = 5.0
    for _ in range(4):
        factor(str(_))
    torch.testing.assert_close(step(batch), one * (3 if size is None else 5))


def test_a_dict_that_makes_what_is_looked_up_is_compared_by_what_it_holds() -> None:
    class Makes(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            return super().__getitem__(key)()

    made = Makes(layer=object)
    frozen = freeze(made)
    assert frozen.holds(made)
    made["layer"] = dict
    assert not frozen.holds(made)


def test_what_was_left_where_a_step_puts_another_tensor_is_no_guard() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = nn.Linear(4, 3), None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale = 1.0 if self.last is None else 2.0
            self.last = x.sum(1)
            return self.layer(x) * scale

    model = Keeps()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = mw.parallelize(model, optimizer, lambda m, x: m(x).square().mean(), **QUICK)
    for number in range(4):
        step(torch.full((2, 4), float(number)))
        assert torch.equal(model.last, torch.full((2,), 4.0 * number))
    assert len(step.variants) == 2


def test_a_model_of_a_library_is_captured_once() -> None:
    """What the library makes and looks at in each step is no guard."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=64)
    model = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters())
    batches = [dict.fromkeys(("input_ids", "labels"), torch.randint(0, 64, (2, 8))) for _ in "123"]
    step = mw.parallelize(
        model,
        optimizer,
        lambda model, batch: model(**batch).loss,
        batches[0],
        cluster=Cluster.preset("virtual-cpu").resized(devices_per_host=1),
        microbatches=1,
    )
    for batch in batches:
        step(batch)
    assert len(step.variants) == 1


def test_objects_that_a_step_makes_are_no_guards() -> None:
    """Nor are those that they hold."""

    class Config:
        def __init__(self) -> None:
            self.size = 4

    class Cache:
        def __init__(self, config: Config) -> None:
            self.configs = [copy.copy(config)]
            self.size = self.configs[0].size
            del self.configs[0].size

    model, config = torch.nn.Linear(4, 1), Config()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(x: torch.Tensor) -> torch.Tensor:
        cache = Cache(config)
        optimizer.zero_grad()
        loss = model(x).square().mean() * cache.size
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = mw.parallelize_step(
        train,
        model,
        optimizer,
        cluster=Cluster.preset("virtual-cpu").resized(devices_per_host=1),
        microbatches=1,
    )
    for _ in range(3):
        step(torch.ones(2, 4))
    assert len(step.variants) == 1
    config.size = 5
    step(torch.ones(2, 4))
    assert len(step.variants) == 2


def test_what_a_functional_call_puts_in_the_place_of_parameters_is_not_the_users() -> None:
    """It is read first while it is there; the model has its own again, and no guard knows it."""
    model = nn.Sequential(nn.Linear(6, 3))
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scaled = {name: p * 2 for name, p in model.named_parameters()}
        loss = functional.cross_entropy(torch.func.functional_call(model, scaled, (x,)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = mw.parallelize_step(train, model, optimizer, **QUICK)
    for _ in range(2):
        step(torch.ones(4, 6), torch.zeros(4, dtype=torch.int64))
        assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert len(step.variants) == 1
