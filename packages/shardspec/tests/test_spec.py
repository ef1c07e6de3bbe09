import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Mesh, Partial, Spec, SpecError, Split, SubAxis, UnknownAxisError
from shardspec.testing import every_spec, meshes, specs

LONG = Mesh((1,) * 13, tuple("abcdefghijklm"))


@st.composite
def any_specs(draw):
    mesh = draw(st.one_of(meshes(max_length=8, max_size=24), st.just(LONG)))
    ndim = draw(st.integers(0, 4))
    return draw(specs(mesh, ndim, sub_axes=True, strided=True, mixed_kinds=True))


@given(any_specs())
def test_parse_inverts_str(spec):
    assert Spec.parse(str(spec)) == spec
    assert eval(repr(spec)) == spec


@given(any_specs())
def test_specs_are_values(spec):
    same = Spec([list(entries) for entries in spec.dims], list(spec.partial))
    assert (same, hash(same)) == (spec, hash(spec))
    for copied in (copy.copy(spec), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
        assert (copied, hash(copied)) == (spec, hash(spec))


@given(any_specs(), st.data())
def test_equal_placements_are_equal_specs(spec, data):
    """Parts of an axis cut further, splits cut further or of one piece, splits at the end."""

    def longer(entry):
        match entry:
            case SubAxis(axis, pre, size):
                factors = [n for n in range(2, size) if size % n == 0]
                n = data.draw(st.sampled_from([size, *factors]))
                return (
                    (entry,)
                    if n == size
                    else (SubAxis(axis, pre, n), SubAxis(axis, pre * n, size // n))
                )
            case Split(factor):
                return (Split(factor), Split(1))
            case _:
                return (Split(1), entry)

    dims = [
        [part for entry in entries for part in longer(entry)]
        + [Split(data.draw(st.integers(1, 3)))]
        for entries in spec.dims
    ]
    partial = [
        Partial(part, p.kind)
        for p in spec.partial
        for part in longer(p.axis)
        if not isinstance(part, Split)
    ]
    assert Spec(dims, data.draw(st.permutations(partial))) == spec


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
        ("S[2]0S(1:(2)4)", Spec(((Split(2), 0), (SubAxis(1, 2, 4),)))),
        ("S(0:(1)2)[3](10)", Spec(((SubAxis(0, 1, 2), Split(3), 10),))),
        (
            "R+Pavg(0:(4)2)+Pproduct2",
            Spec(((),), (Partial(SubAxis(0, 4, 2), "avg"), Partial(2, "product"))),
        ),
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


def test_superscripts_are_axes_as_the_papers_print_them():
    assert Spec.parse("S⁰¹RS²") == Spec.parse("S01RS2")


def test_a_spec_tells_what_it_uses():
    spec = Spec.parse("S[2]0S(1:(2)4)R+Pmax2")
    assert (spec.axes, spec.partial_axes, spec.is_plain) == ((0, 1), (2,), False)
    assert (spec.sharding_of(0), spec.sharding_of(1)) == ((0,), (SubAxis(1, 2, 4),))
    assert Spec.parse("S01R+P2").plain_dims == ((0, 1), ())
    for text in ("S[2]0", "S(0:(1)2)", "R+P(0:(1)2)"):
        with pytest.raises(SpecError, match="of whole axes, without splits, can be used here; got"):
            Spec.parse(text).plain_dims  # noqa: B018


def test_names_become_indices():
    mesh = Mesh((2, 2, 2), ("x", "y", "z"))
    assert str(Spec.from_names(mesh, ("z", None, ("y", "x")))) == "S2RS10"
    assert str(Spec.from_names(mesh, ["z", [], ["y", "x"]])) == "S2RS10"
    assert str(Spec.from_names(mesh, (None,), {"z": "sum", "y": "max"})) == "R+Pmax1+P2"
    for names in (("w",), (("x", 0),), (("x", None),)):
        with pytest.raises(UnknownAxisError, match="the axis is one of the mesh's; got"):
            Spec.from_names(mesh, names)
    with pytest.raises(SpecError, match="an axis, a tuple of names or None; got 3"):
        Spec.from_names(mesh, ("x", 3))
    with pytest.raises(SpecError, match="combine by one of"):
        Spec.from_names(mesh, (None,), {"x": "mean"})


def test_numpy_integers_become_ints():
    spec = Spec(np.array([[0, 2], [1, 3]]), [Partial(np.int8(4))])
    assert spec == Spec.parse("S02S13+P4")
    assert {type(axis) for axes in spec.dims for axis in axes} == {int}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "S",
        "S0 R",
        "R0",
        "s0",
        "R+P",
        "R+Q0",
        "R+P01",
        "()R",
        "S-1",
        "+P0",
        "S(1",
        "S٠",
        "S[2",
        "S()",
        "S(1:2)",
        "S(1:(2))",
        "R+P[2]",
        "S[٣]0",
        "S[-2]0",
        "S0\0",
        "S" + "9" * 20 + "]",
        "S[" + "9" * 20 + "]0",
    ],
)
def test_rejects_text_that_is_no_spec(text):
    with pytest.raises(SpecError, match="a letter for each dim, R or S with its axes"):
        Spec.parse(text)


@pytest.mark.parametrize("text", [None, 0, b"S0", ["S0"], Spec(())])
def test_rejects_to_parse_what_is_no_text(text):
    with pytest.raises(SpecError, match="a letter for each dim, R or S with its axes"):
        Spec.parse(text)


def test_long_texts_are_specs_too_and_cut_off_in_messages():
    assert Spec.parse("R" * 20_000).ndim == 20_000
    with pytest.raises(SpecError, match=r"got 'R{199}\.\.\. \(20003 characters\)"):
        Spec.parse("R" * 20_000 + "x")


@pytest.mark.parametrize(
    "text", ["S0S0", "S00R", "S0R+P0", "R+P1+Pmax1", "S0(0:(1)2)", "S(0:(1)4)(0:(2)2)"]
)
def test_rejects_an_axis_used_twice(text):
    with pytest.raises(
        SpecError, match="each axis at most once, and axes are indices >= 0; got dims="
    ):
        Spec.parse(text)


@pytest.mark.parametrize("axis", [-1, 0.0, True, "0", None, 2**63, (0,), Partial(0)])
def test_rejects_what_is_no_axis(axis):
    with pytest.raises(SpecError, match=r"axes are indices >= 0; got dims=\(\("):
        Spec(((axis,),))


@pytest.mark.parametrize("dims", [None, 3, (0,), (None,), (((0,),), 0)])
def test_rejects_dims_that_are_no_tuples(dims):
    with pytest.raises(
        SpecError, match=r"a tuple of axes for each dim; got dims=.*; Spec.parse reads"
    ):
        Spec(dims)


@pytest.mark.parametrize("text", ["S0R", ["S0"], ("x",)])
def test_rejects_texts_as_dims(text):
    with pytest.raises(SpecError, match="axes are indices >= 0"):
        Spec(text)


@pytest.mark.parametrize("partial", [None, 0, (0,), Partial(0), "P0", [("x", "sum")]])
def test_rejects_partial_results_of_another_type(partial):
    with pytest.raises(SpecError, match=r"a tuple of Partial\(axis, kind\); got partial="):
        Spec(((),), partial)
