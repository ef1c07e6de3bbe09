import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, NotationError, ShardspecError, Spec, on_mesh
from shardspec.notation.alpa import dump, parse
from shardspec.testing import every_spec, layouts

SMALL = Mesh((2, 2), ("x", "y"))
CUBE = Mesh((8, 8, 8), ("x", "y", "z"))
TOKENS = ["R", "S", "0", "1", "2", "9", "⁰", "¹", "(", ")", ":", "[", "]", "()", "(0)", "(10)"]
TOKENS += ["(0:(1)2)", "(0:(2)4)", "(1:(1)8)", "[2]", "[0]", "[", "]", "+P", "+Pmax", "max", "+"]
SOUP = st.lists(st.sampled_from(TOKENS), max_size=12).map("".join)
NO_LIST = SOUP.filter(lambda text: text[:1] != "[")
SEPARATORS = [",", ", ", " ", "\n", "\t", "\0", "٣", "S[2]0", "9" * 19]
VALID = ["S01R+Pmax2", "S[2]0S(1:(2)4)", "S⁰R", "[S0, R, S12]", "()", "S0,R"]


@st.composite
def mutated(draw):
    """A valid text with a part of it replaced by a token."""
    text = draw(st.sampled_from(VALID))
    start = draw(st.integers(0, len(text)))
    stop = draw(st.integers(start, min(start + 8, len(text))))
    return text[:start] + draw(st.sampled_from(["", *TOKENS])) + text[stop:]


ANY_TEXT = (
    st.text() | st.lists(st.sampled_from(TOKENS + SEPARATORS), max_size=15).map("".join) | mutated()
)


@given(layouts(sub_axes=True, strided=True, mixed_kinds=True))
def test_plain_specs_come_back(layout):
    assert dump(layout) == str(layout.spec)
    assert parse(dump(layout), shape=layout.shape, mesh=layout.mesh) == layout


@given(NO_LIST)
def test_plain_specs_read_like_the_specs_of_the_library(text):
    try:
        spec = Spec.parse(text)
        expected = Layout((0,) * spec.ndim, CUBE, spec)
    except ShardspecError:
        expected = None
    try:
        found = parse(text, mesh=CUBE)
    except NotationError:
        found = None
    else:
        assert found == Layout(found.shape, CUBE, expected.spec)
    assert (found is None) == (expected is None)


@pytest.mark.parametrize("style", ["superscript", "colossal"])
def test_all_specs_of_whole_axes_come_back_in_every_style(style):
    mesh = Mesh((2, 1, 3), ("x", "y", "z"))
    for ndim in range(4):
        for spec in every_spec(mesh, ndim, partial=style == "superscript"):
            layout = Layout((6,) * ndim, mesh, spec)
            assert parse(dump(layout, style=style), shape=layout.shape, mesh=mesh) == layout


@pytest.mark.parametrize("text", ["[S0, R, S21]", "S0,R,S21", "[S0,R,S21]", "[ S0 , R , S21 ]"])
def test_lists_read_as_the_plain_spec(text):
    assert parse(text, mesh=CUBE) == parse("S0RS21", mesh=CUBE)


def test_a_scalar_has_a_spec_in_every_style():
    layout = Layout((), SMALL, Spec(()))
    assert [dump(layout, style=s) for s in ("plain", "superscript", "colossal")] == [
        "()",
        "()",
        "[]",
    ]
    assert parse("()", mesh=SMALL) == parse("[]", mesh=SMALL) == layout


@given(st.sampled_from(["S01R", "S[3]0R", "S(0:(2)4)S1", "R+P2", "()"]))
def test_without_a_shape_dims_have_an_element_for_each_piece(text):
    layout = parse(text, mesh=CUBE)
    assert layout.shape == tuple(map(math.prod, layout.cuts))
    assert {layout.local_shape(0), layout.local_shape(511)} == {
        tuple(n // s for n, s in zip(layout.shape, layout.shards, strict=True))
    }


N, M = 8, 12
ALL_N, ALL_M = slice(0, N), slice(0, M)
UP, DOWN = slice(0, N // 2), slice(N // 2, N)
LEFT, RIGHT = slice(0, M // 2), slice(M // 2, M)
ROWS = [slice(i * N // 4, (i + 1) * N // 4) for i in range(4)]
COLUMNS = [slice(i * M // 4, (i + 1) * M // 4) for i in range(4)]

# Table 1 of Alpa. Its rows S01R and RS01 misprint device 1 as N/4 : 3N/4 (M/4 : 3M/4), which would
# overlap device 2; N/4 : N/2 is meant.
TABLE_1 = {
    "RR": [(ALL_N, ALL_M)] * 4,
    "S⁰S¹": [(UP, LEFT), (UP, RIGHT), (DOWN, LEFT), (DOWN, RIGHT)],
    "S¹S⁰": [(UP, LEFT), (DOWN, LEFT), (UP, RIGHT), (DOWN, RIGHT)],
    "S⁰R": [(UP, ALL_M), (UP, ALL_M), (DOWN, ALL_M), (DOWN, ALL_M)],
    "S¹R": [(UP, ALL_M), (DOWN, ALL_M), (UP, ALL_M), (DOWN, ALL_M)],
    "RS⁰": [(ALL_N, LEFT), (ALL_N, LEFT), (ALL_N, RIGHT), (ALL_N, RIGHT)],
    "RS¹": [(ALL_N, LEFT), (ALL_N, RIGHT), (ALL_N, LEFT), (ALL_N, RIGHT)],
    "S⁰¹R": [(rows, ALL_M) for rows in ROWS],
    "RS⁰¹": [(ALL_N, columns) for columns in COLUMNS],
}


@pytest.mark.parametrize("text", TABLE_1)
def test_specs_of_alpa_table_1_print_and_place_as_there(text):
    layout = parse(text, shape=(N, M), mesh=SMALL)
    assert dump(layout, style="superscript") == text
    assert [layout.slices(device) for device in range(4)] == TABLE_1[text]


def test_alpa_table_1_has_all_specs_but_those_that_list_the_axes_backwards():
    specs = [spec for spec in every_spec(SMALL, 2, partial=False) if "10" not in str(spec)]
    assert {dump(Layout((N, M), SMALL, spec), style="superscript") for spec in specs} == {*TABLE_1}


# Figure 2 of the cross-mesh paper: a 4×4 matrix, meshes of the devices 0 to 3 and 4 to 7. Section 2
# gives spec 1 "4×1" slices, a misprint: its first one, [0, 1, 2, 3], is a row, as S⁰¹R says.
MESH_B = Mesh((2, 2), ("x", "y"), range(4, 8))
FIGURE_2 = [
    ("S⁰¹R", SMALL, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]),
    ("S⁰R", MESH_B, [[*range(8)], [*range(8)], [*range(8, 16)], [*range(8, 16)]]),
    ("S⁰S¹", SMALL, [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]),
]


@pytest.mark.parametrize(("text", "mesh", "held"), FIGURE_2)
def test_layouts_of_the_cross_mesh_figure_2_print_and_place_as_there(text, mesh, held):
    layout = parse(text, shape=(4, 4), mesh=mesh)
    assert dump(layout, style="superscript") == text
    elements = [
        [4 * i + j for i in range(4)[rows] for j in range(4)[columns]]
        for rows, columns in map(layout.slices, mesh.device_ids)
    ]
    assert elements == held


def attempt(read, text, **arguments):
    """What is read, or the error, which must say where it is."""
    try:
        return read(text, **arguments)
    except NotationError as error:
        found = error
    assert found.text == text
    assert 0 <= found.position <= len(text)
    return found


@given(ANY_TEXT)
def test_any_text_is_a_layout_or_an_error_that_says_where(text):
    assert isinstance(attempt(parse, text, mesh=SMALL), Layout | NotationError)


@pytest.mark.parametrize(
    "text", ["R" * 10**6, "S" + "0" * 10**6, "[" * 10**6, " " * 10**6, "S(" + "1" * 10**6]
)
def test_long_texts_are_refused(text):
    with pytest.raises(NotationError, match="a spec has at most 10000 characters"):
        parse(text, mesh=SMALL)


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        (
            "",
            0,
            "a spec has R, or S with axes, for each dim, or is '\\(\\)' for a scalar; got the end",
        ),
        ("S0S", 3, "an axis is a digit, or a number in parentheses; got the end at position 3"),
        ("S0X", 2, "a spec ends here; got 'X' at position 2"),
        ("RS2", 2, "an axis index is >= 0 and below the mesh's number of axes, 2; got axis 2"),
        ("S(0:(2)2)", 1, "the pre-size and size of a sub-axis divide its axis"),
        ("S(0:(1)1)", 1, "a sub-axis has an axis index >= 0, a pre-size >= 1 and a size >= 2"),
        ("S[0]1", 1, "a split makes at least one piece; got '\\[0\\]1' at position 1"),
        ("S0S0", 0, "a spec uses each axis at most once"),
        ("[S0, R", 6, "a spec has '\\]' here; got the end at position 6"),
        ("S0,RR", 4, "a spec ends here; got 'R' at position 4"),
        ("S" + "[999999999999999999]" * 2 + "0", 0, "at most|a split|pieces"),
    ],
)
def test_errors_say_what_is_wrong_and_where(text, position, message):
    with pytest.raises(NotationError, match=message) as caught:
        parse(text, mesh=SMALL)
    assert caught.value.position == position


def test_a_mesh_is_needed():
    with pytest.raises(NotationError, match="a spec names no devices; pass mesh="):
        parse("S0R")


def test_the_shape_has_the_rank_of_the_spec():
    with pytest.raises(NotationError, match="a spec has one entry for each dim"):
        parse("S0R", shape=(4,), mesh=SMALL)


@pytest.mark.parametrize(
    ("text", "style", "message"),
    [
        ("S(0:(1)2)R", "superscript", "'superscript' has a digit for each axis, a whole one"),
        ("S[2]0R", "colossal", "'colossal' has a digit for each axis, a whole one"),
        ("S0R+P1", "colossal", "ColossalAI's specs have no partial results; got S0R\\+P1"),
    ],
)
def test_styles_refuse_what_they_cannot_say(text, style, message):
    with pytest.raises(NotationError, match=message):
        dump(parse(text, mesh=CUBE), style=style)


def test_axes_from_ten_on_are_said_in_the_plain_style_only():
    mesh = Mesh((1,) * 10 + (2,), tuple("abcdefghijk"))
    layout = parse("S(10)", mesh=mesh)
    assert dump(layout) == "S(10)"
    with pytest.raises(NotationError, match="a digit for each axis"):
        dump(layout, style="colossal")


def test_parts_of_axes_are_said_on_a_mesh_that_has_them_as_axes():
    layout = parse("S(0:(2)4)R", mesh=Mesh((8,), ("x",)))
    wider = on_mesh(layout, layout.mesh.split("x", (2, 4)))
    assert dump(wider, style="superscript") == "S¹R"


def test_dims_cut_by_another_rule_are_refused():
    layout = Layout((5,), Mesh((4,), ("x",)), Spec.parse("S0"), "balanced")
    with pytest.raises(NotationError, match="Alpa cuts all dims by the rule 'ceil'"):
        dump(layout)
    assert dump(Layout((8,), layout.mesh, layout.spec, "balanced")) == "S0"


def test_names_the_styles_there_are():
    with pytest.raises(
        NotationError, match=r"one of .'plain', 'superscript', 'colossal'.; got 'x'"
    ):
        dump(parse("S0", mesh=CUBE), style="x")
