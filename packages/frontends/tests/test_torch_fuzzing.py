"""The judges see what they are there for, and random programs are programs."""

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from frontends.errors import UnsupportedStepError
from frontends.torch.fuzzing import Data, Eager, Ours, Written, judge, judging, programs
from frontends.torch.fuzzing.compare import copied, differences
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

_NUMBERS = st.floats(-1e3, 1e3, width=32)
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-99, 99)
    | _NUMBERS
    | st.text(max_size=3)
    | st.lists(_NUMBERS, max_size=4).map(torch.tensor)
    | st.lists(_NUMBERS, max_size=4).map(lambda x: np.array(x, np.float32))
)
_TREES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(_TREES)
def test_a_copy_differs_in_nothing(tree: Any) -> None:
    assert not list(differences(copied(tree), copied(tree), 1e-5))


@given(st.lists(_NUMBERS, min_size=1, max_size=4), st.integers(0, 3))
def test_a_written_tensor_differs_from_its_copy(numbers: list[float], place: int) -> None:
    tensor = torch.tensor(numbers, dtype=torch.float64)
    before = copied({"a": [tensor]})
    tensor[place % len(numbers)] += 1.0
    assert list(differences(before, copied({"a": [tensor]}), 1e-5))


@dataclasses.dataclass
class _Box:
    inside: Any


DIFFERENT = [
    (1, 1.0),
    (True, 1),
    ([1], (1,)),
    ({"a": 1}, {"b": 1}),
    ([1], [1, 2]),
    (None, torch.zeros(())),
    (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
    (torch.zeros(2), torch.zeros(1, 2)),
    (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0])),
    (torch.zeros(2, device="meta"), torch.zeros(2)),
    (np.zeros(2), np.ones(2)),
    ("a", "b"),
    ({1}, {2}),
    (_Box(1), _Box(2)),
    (_Box(1), {"inside": 1}),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_other_types_shapes_keys_and_values_differ(one: Any, other: Any) -> None:
    assert list(differences(copied(one), copied(other), 1e-5))


def _trained(way: Eager) -> Iterator[Any]:
    data = Data()
    model = torch.nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train = way.loss(model, optimizer, lambda m, b: functional.cross_entropy(m(b[0]), b[1]))
    for _ in range(2):
        yield train(data.labelled()), model, optimizer, way


def _here(way: Eager, call: int, index: int) -> bool:
    """Whether it is the second call, and not eager."""
    return isinstance(way, Ours) and call == index


@pytest.mark.parametrize("place", ["result", "weight", "buffer", "attribute", "group", "random"])
def test_what_differs_at_one_call_is_wrong(place: str) -> None:
    def program(way: Eager) -> Iterator[Any]:
        for call, (_, model, optimizer, _) in enumerate(_eagerly(way)):
            if _here(way, call, 1):
                with torch.no_grad():
                    if place == "weight":
                        model.weight[0, 0] += 1e-3
                model.attribute = place == "attribute"
                optimizer.param_groups[0]["lr"] = 0.2 if place == "group" else 0.1
                if place == "random":
                    torch.rand(())
                if place == "buffer":
                    model.register_buffer("b", torch.zeros(()))
            else:
                model.attribute = False
            yield float(_here(way, call, 1) and place == "result")

    verdict = judge(program)
    assert verdict.name == "WRONG"
    assert verdict.detail.startswith("call 1: ")


def _eagerly(way: Eager) -> Iterator[Any]:
    """The same in both ways, so that what differs is what a test plants."""
    own = Eager()
    way.watched = own.watched
    yield from _trained(own)


def test_an_error_of_ours_is_typed_and_another_raw() -> None:
    def refused(way: Eager) -> Iterator[Any]:
        yield 1
        if isinstance(way, Ours):
            raise UnsupportedStepError("no")

    def failed(way: Eager) -> Iterator[Any]:
        yield 1
        if isinstance(way, Ours):
            raise RuntimeError("no")

    assert judge(refused).name == "typed"
    assert judge(failed).name == "RAW"


def test_a_program_that_fails_eagerly_is_broken() -> None:
    def program(way: Eager) -> Iterator[Any]:
        yield 1
        raise RuntimeError("no")

    assert judge(program).name == "BROKEN"


def test_a_program_that_does_not_end_hangs() -> None:
    def program(way: Eager) -> Iterator[Any]:
        yield 1
        while isinstance(way, Ours):
            time.sleep(0.01)

    assert judge(program, limit_s=1).name == "HANG"


@pytest.mark.parametrize(("leaves", "name"), [(0.0, "typed"), (1.0, "WRONG")])
def test_a_refusal_that_leaves_a_change_is_wrong(
    monkeypatch: pytest.MonkeyPatch, leaves: float, name: str
) -> None:
    """A program that is refused goes on eagerly, and shows what was changed before."""

    def refusing(step: Any, model: torch.nn.Module, *_: Any, **__: Any) -> Any:
        def call(x: torch.Tensor) -> None:
            with torch.no_grad():
                model.weight += leaves
            raise UnsupportedStepError("only now")

        return call

    monkeypatch.setattr(judging, "parallelize_step", refusing)

    def program(way: Eager) -> Iterator[Any]:
        model = torch.nn.Linear(2, 2)
        step = way.step(lambda x: None, model, torch.optim.SGD(model.parameters(), 0.1))
        for _ in range(2):
            yield step(torch.ones(2, 2))

    assert judge(program).name == name


@settings(max_examples=60)
@given(programs())
def test_random_programs_run_eagerly_and_print_as_source(written: Written) -> None:
    torch.manual_seed(0)
    seen = list(written.program()(Eager()))
    assert len(seen) == 4
    assert repr(written).startswith("@program(devices=")
    assert f"\n{written.source}" in repr(written)
