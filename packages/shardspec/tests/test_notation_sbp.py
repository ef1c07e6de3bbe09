import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, NotationError, Spec, SubAxis, on_mesh
from shardspec.notation.sbp import dump, parse
from shardspec.testing import EVERY_RULE, check_layout, layouts, meshes

SQUARE = Mesh((2, 2), ("x", "y"))
TOKENS = ["S", "B", "P", "(", ")", "[", "]", ",", "0", "1", "S(0)", "S(1)", "S(19)", "S(20)", "'"]
TOKENS += ["oneflow.sbp.", "flow.sbp.", "split", "broadcast", "partial_sum", "dim=", '"', " ", "٣"]
VALID = ["(S(0), B)", '["P", "S(1)"]', "(oneflow.sbp.split(dim=0), flow.sbp.broadcast())", "B"]


@st.composite
def mutated(draw):
    """A valid text with a part of it replaced by a token."""
    text = draw(st.sampled_from(VALID))
    start = draw(st.integers(0, len(text)))
    stop = draw(st.integers(start, min(start + 8, len(text))))
    return text[:start] + draw(st.sampled_from(["", *TOKENS])) + text[stop:]


ANY_TEXT = st.text() | st.lists(st.sampled_from(TOKENS), max_size=12).map("".join) | mutated()


@st.composite
def sbps(draw):
    """A mesh, an entry for each of its axes, and a shape."""
    mesh = draw(meshes(min_ndim=0))
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    entry = st.sampled_from(["B", "P", *[f"S({dim})" for dim in range(len(shape))]])
    return mesh, [draw(entry) for _ in range(mesh.ndim)], shape


def written(entries):
    return entries[0] if len(entries) == 1 else f"({', '.join(entries)})"


@given(sbps())
def test_every_sbp_comes_back(case):
    mesh, entries, shape = case
    layout = parse(written(entries), shape=shape, mesh=mesh)
    assert dump(layout) == written(entries)
    assert parse(dump(layout, style="python"), shape=shape, mesh=mesh) == layout


@given(layouts(sub_axes=True, strided=True, mixed_kinds=True, chunking=EVERY_RULE))
def test_every_layout_comes_back_or_is_refused(layout):
    try:
        text = dump(layout)
    except NotationError:
        return
    assert parse(text, shape=layout.shape, mesh=layout.mesh).is_equivalent(layout)


def oneflow_range(n, parts, i):
    """What `BalancedSplitter(n, parts).At(i)` gives."""
    base, rest = n // parts, n % parts
    if i < rest:
        return (base + 1) * i, (base + 1) * (i + 1)
    start = (base + 1) * rest + base * (i - rest)
    return start, start + base


@given(sbps())
def test_dims_are_cut_axis_after_axis_by_the_balanced_splitter(case):
    mesh, entries, shape = case
    layout = parse(written(entries), shape=shape, mesh=mesh)
    check_layout(layout)
    for device in mesh.device_ids:
        ranges = [(0, n) for n in shape]
        for parts, at, entry in zip(mesh.shape, mesh.coordinates(device), entries, strict=True):
            if entry[0] == "S":
                start, stop = ranges[int(entry[2:-1])]
                begin, end = oneflow_range(stop - start, parts, at)
                ranges[int(entry[2:-1])] = (start + begin, start + end)
        assert layout.slices(device) == tuple(slice(*r) for r in ranges)


@pytest.mark.parametrize(
    "text",
    [
        "(S(0), B, P)",
        "[S(0), B, P]",
        "[S(0),B,P,]",
        '["S(0)", "B", "P"]',
        "('S(0)', 'B', 'P')",
        " ( S ( 0 ) , B , P ) ",
        "(oneflow.sbp.split(dim=0), oneflow.sbp.broadcast, oneflow.sbp.partial_sum)",
        "(oneflow.sbp.split(axis=0), oneflow.sbp.broadcast, oneflow.sbp.partial_sum)",
        "[flow.sbp.split(0), flow.sbp.broadcast(), flow.sbp.partial_sum()]",
    ],
)
def test_all_spellings_read_alike(text):
    mesh = Mesh((2, 2, 2), ("x", "y", "z"))
    assert parse(text, mesh=mesh) == Layout((2,), mesh, Spec.parse("S0+P2"))


@pytest.mark.parametrize("text", ["S(1)", "[S(1)]", "(S(1),)", "(oneflow.sbp.split(dim=1),)"])
def test_an_entry_may_stand_alone_on_a_mesh_of_one_axis(text):
    assert parse(text, mesh=Mesh((2,), ("x",))).spec == Spec.parse("RS0")


def test_programs_print_a_tuple_even_of_one_entry():
    layout = parse("S(1)", mesh=Mesh((2,), ("x",)))
    assert dump(layout, style="python") == "(oneflow.sbp.split(dim=1),)"


def test_listing_1_of_autoddl_places_as_it_says():
    mesh = Mesh((2, 3, 4), ("x", "y", "z"))
    layout = parse('["S(1)", "S(0)", "B"]', shape=(6, 4), mesh=mesh)
    assert layout.spec == Spec.parse("S1S0")
    assert layout.shards == (3, 2)  # "(S1:2, S0:3, B:4)"


def test_the_example_of_oneflows_2d_sbp_page_places_as_there():
    layout = parse("(broadcast, split(0))", shape=(2, 2), mesh=SQUARE)
    rows = [layout.slices(device)[0] for device in range(4)]
    assert rows == [slice(0, 1), slice(1, 2), slice(0, 1), slice(1, 2)]


def test_without_a_shape_the_last_dim_is_the_last_that_is_split():
    assert parse("(S(2), S(2))", mesh=SQUARE).shape == (1, 1, 4)
    assert parse("(B, P)", mesh=SQUARE).shape == ()


def attempt(read, text, **arguments):
    """What is read, or the error, which must say where it is."""
    try:
        return read(text, **arguments)
    except NotationError as error:
        found = error
    assert found.text == text
    assert 0 <= found.position <= len(text)
    return found


@given(ANY_TEXT, meshes(min_ndim=0))
def test_any_text_is_a_layout_or_an_error_that_says_where(text, mesh):
    assert isinstance(attempt(parse, text, mesh=mesh), Layout | NotationError)


@pytest.mark.parametrize(
    "unit", ["(", "[", "S(0),", "B", "'", " ", "S(" + "9" * 19, "oneflow.sbp.", "\0", "²"]
)
def test_a_million_characters_are_refused(unit):
    with pytest.raises(NotationError):
        parse(unit * (10**6 // len(unit)), mesh=SQUARE)


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("", 0, "an entry of an SBP is one of split, broadcast, partial_sum, S, B, P; got the end"),
        ("(S(0), Q)", 7, "an entry of an SBP is one of .*; got 'Q\\)' at position 7"),
        ("(S(0), B", 8, "an SBP has ',' here; got the end at position 8"),
        ("(S(0))", 6, "an SBP has an entry for each axis of its mesh, here 2; got the end"),
        ("(B, B, B)", 7, "an SBP has an entry for each axis of its mesh, here 2, and no more"),
        ("(B, B) B", 7, "an SBP ends here; got 'B' at position 7"),
        ("(B, S(3))", 6, "an SBP splits a dim of the tensor, below 2; got '3\\)\\)' at position 6"),
        ("(B, S(٣))", 6, "an SBP has an integer here"),
    ],
)
def test_errors_say_what_is_wrong_and_where(text, position, message):
    with pytest.raises(NotationError, match=message) as caught:
        parse(text, shape=(4, 4), mesh=SQUARE)
    assert caught.value.position == position


def test_a_mesh_is_needed():
    with pytest.raises(NotationError, match="an SBP names no devices; pass mesh="):
        parse("(S(0), B)")


def test_without_a_shape_there_are_at_most_twenty_dims():
    assert len(parse("S(19)", mesh=Mesh((2,), ("x",))).shape) == 20
    with pytest.raises(NotationError, match="an SBP splits a dim of the tensor, below 20"):
        parse("S(20)", mesh=Mesh((2,), ("x",)))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("S10", "the earlier of two axes is the major one; got \\(1, 0\\) for dim 0 .* on_mesh"),
        ("S(0:(1)2)", "an SBP uses whole axes; .* on_mesh"),
        ("S[2]0", "OneFlow cannot keep pieces of a dim together; .* the notation 'torch'"),
        ("R+Pmax1", "the partial results of OneFlow are sums; got max .* combine these before"),
        ("+".join(["R" * 21, "P0"]), "OneFlow's tensors have at most 20 dims"),
    ],
)
def test_what_an_sbp_cannot_say_is_refused(spec, message):
    spec = Spec.parse(spec)
    layout = Layout((16,) * spec.ndim, Mesh((4, 4), ("x", "y")), spec)
    with pytest.raises(NotationError, match=message):
        dump(layout)


def test_uneven_dims_that_oneflow_would_cut_otherwise_are_refused():
    mesh = Mesh((4,), ("x",))
    assert dump(Layout((5,), mesh, Spec.parse("S0"), "balanced")) == "S(0)"
    with pytest.raises(NotationError, match="OneFlow cuts all dims by the rule 'balanced'"):
        dump(Layout((5,), mesh, Spec.parse("S0"), "ceil"))


def test_axes_of_length_one_have_no_order():
    layout = Layout((4,), Mesh((1, 2), ("x", "y")), Spec.parse("S10"))
    assert dump(layout) == "(S(0), S(0))"


@pytest.mark.parametrize(
    ("dim", "mesh"),
    [
        ((1, 0), Mesh((2, 4), ("y", "x"), (0, 2, 4, 6, 1, 3, 5, 7))),
        ((SubAxis(0, 2, 2), 1), Mesh((2, 2, 2), ("a", "b", "c"))),
    ],
)
def test_on_a_mesh_with_the_axes_in_order_it_can_be_said(dim, mesh):
    layout = Layout((8,), Mesh((4, 2), ("x", "y")), Spec((dim,)))
    there = on_mesh(layout, mesh)
    assert parse(dump(there), shape=(8,), mesh=mesh).is_equivalent(layout)


def test_names_the_styles_there_are():
    layout = Layout((4,), Mesh((2,), ("x",)), Spec.parse("S0"))
    with pytest.raises(NotationError, match=r"a style of an SBP is one of .*; got 'long'"):
        dump(layout, style="long")
