import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Mesh, Partial, Spec, SpecError, UnknownAxisError
from shardspec.testing import every_spec, meshes, specs

LONG = Mesh((1,) * 13, tuple("abcdefghijklm"))


@given(st.data())
def test_parse_inverts_str(data):
    mesh = data.draw(st.one_of(meshes(), st.just(LONG)))
    spec = data.draw(specs(mesh, data.draw(st.integers(0, 4))))
    assert Spec.parse(str(spec)) == spec
    assert eval(repr(spec)) == spec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("()", Spec(())),
        ("()+P0", Spec((), (Partial(0),))),
        ("RR", Spec.replicated(2)),
        ("S0R", Spec(((0,), ()))),
        ("S01R", Spec(((0, 1), ()))),
        ("S10R", Spec(((1, 0), ()))),
        ("S0R+P1", Spec(((0,), ()), (Partial(1),))),
        ("R+Pmax0", Spec(((),), (Partial(0, "max"),))),
        ("R+P0+Pmax1", Spec(((),), (Partial(0), Partial(1, "max")))),
        ("S(10)(0)R+Pmin(12)", Spec(((10, 0), ()), (Partial(12, "min"),))),
    ],
)
def test_notation(text, spec):
    assert str(spec) == text
    assert Spec.parse(text) == spec


def test_distinct_specs_print_differently():
    found = list(every_spec(Mesh((2, 2, 2), ("x", "y", "z")), 2))
    assert len({str(spec) for spec in found}) == len(set(found)) == len(found)


def test_partial_axes_are_kept_sorted():
    spec = Spec(((),), (Partial(1), Partial(0, "max")))
    assert spec.partial == (Partial(0, "max"), Partial(1))


def test_parts_of_a_spec():
    spec = Spec.parse("S20R+P1")
    assert (spec.ndim, spec.axes, spec.sharding_of(0), spec.sharding_of(1)) == (
        2,
        (2, 0),
        (2, 0),
        (),
    )
    assert spec.is_partial
    assert not Spec.replicated(2).is_partial


def test_names_become_indices():
    mesh = Mesh((2, 2, 2), ("x", "y", "z"))
    assert str(Spec.from_names(mesh, ("z", None, ("y", "x")))) == "S2RS10"
    assert str(Spec.from_names(mesh, (None,), {"z": "sum", "y": "max"})) == "R+Pmax1+P2"
    with pytest.raises(UnknownAxisError, match="got 'w'"):
        Spec.from_names(mesh, ("w",))


@pytest.mark.parametrize(
    "text", ["", "S", "S0 R", "R0", "s0", "R+P", "R+Q0", "R+P01", "()R", "S-1", "+P0", "S(1", "S٠"]
)
def test_rejects_text_that_is_no_spec(text):
    with pytest.raises(SpecError, match="a letter for each dim, R or S with its axes"):
        Spec.parse(text)


@pytest.mark.parametrize("text", ["S0S0", "S00R", "S0R+P0", "R+P1+Pmax1"])
def test_rejects_an_axis_used_twice(text):
    with pytest.raises(
        SpecError, match="each axis at most once, and axes are indices >= 0; got dims="
    ):
        Spec.parse(text)


def test_rejects_a_negative_axis():
    with pytest.raises(SpecError, match="indices >= 0"):
        Spec(((-1,),))


def test_rejects_an_unknown_reduction():
    with pytest.raises(SpecError, match=r"one of \('sum', .*'avg'\); got kind='mean'"):
        Partial(0, "mean")
