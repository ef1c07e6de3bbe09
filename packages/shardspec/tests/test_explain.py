import re

import pytest
from hypothesis import given
from shardspec import (
    Layout,
    Mesh,
    ReshardPlan,
    Spec,
    Step,
    explain,
    reshard,
)
from shardspec.report.phrases import block_text
from shardspec.testing import EVERY_RULE, layout_pairs, layouts, meshes

MESH = Mesh((2, 2), ("x", "y"))
TABLE_1 = {  # of Alpa, for a 4x4 matrix; its device 1 of S01R is a slip, N/4:3N/4 for N/4:N/2
    "RR": ["0:4, 0:4", "0:4, 0:4", "0:4, 0:4", "0:4, 0:4"],
    "S0S1": ["0:2, 0:2", "0:2, 2:4", "2:4, 0:2", "2:4, 2:4"],
    "S1S0": ["0:2, 0:2", "2:4, 0:2", "0:2, 2:4", "2:4, 2:4"],
    "S0R": ["0:2, 0:4", "0:2, 0:4", "2:4, 0:4", "2:4, 0:4"],
    "S1R": ["0:2, 0:4", "2:4, 0:4", "0:2, 0:4", "2:4, 0:4"],
    "RS0": ["0:4, 0:2", "0:4, 0:2", "0:4, 2:4", "0:4, 2:4"],
    "RS1": ["0:4, 0:2", "0:4, 2:4", "0:4, 0:2", "0:4, 2:4"],
    "S01R": ["0:1, 0:4", "1:2, 0:4", "2:3, 0:4", "3:4, 0:4"],
    "RS01": ["0:4, 0:1", "0:4, 1:2", "0:4, 2:3", "0:4, 3:4"],
}


def of(shape, spec, mesh=MESH, chunking="ceil"):
    return Layout(shape, mesh, Spec.parse(spec), chunking)


@pytest.mark.parametrize("spec", TABLE_1)
def test_blocks_are_those_of_alpas_table_1(spec):
    layout = of((4, 4), spec)
    assert [block_text(layout, d) for d in range(4)] == [f"A[{text}]" for text in TABLE_1[spec]]


def listed(text):
    """What `explain` says that each device holds."""
    found = {}
    for line in re.findall(r"^devices? .*", text, flags=re.MULTILINE):
        holders, _, block = line.partition("  ")
        for part in re.findall(r"\d+-\d+|\d+", holders):
            first, last = map(int, (part.split("-") * 2)[:2])
            found |= {device: block.strip() for device in range(first, last + 1)}
    return found


@given(
    meshes(max_length=2, max_ndim=2).flatmap(
        lambda mesh: layouts(mesh=mesh, strided=True, mixed_kinds=True, chunking=EVERY_RULE)
    )
)
def test_every_device_is_listed_with_what_it_holds(layout):
    expected = {device: block_text(layout, device) for device in layout.mesh.device_ids}
    assert listed(explain(layout)) == expected


@given(layouts(sub_axes=True, strided=True, mixed_kinds=True, chunking=EVERY_RULE))
def test_lines_are_few_and_the_same_each_time(layout):
    text = explain(layout, itemsize=2)
    assert text == explain(layout, itemsize=2)
    assert len(text.splitlines()) < 40
    assert all(name in text for name in layout.mesh.axis_names)


CASES = {
    "even": of((8, 4), "S01R"),
    "uneven": of((7, 4), "S0S1"),
    "balanced": of((7, 4), "S01R", chunking="balanced"),
    "padded": of((5,), "S01", chunking="padded"),
    "chosen": of((8, 4), "S0R", chunking=((5, 3), "ceil")),
    "empty shards": of((2, 3), "S01R"),
    "no elements": of((0, 3), "S0R"),
    "scalar": of((), "()"),
    "sum": of((8, 4), "RS1+P0"),
    "mixed kinds": of((), "()+P0+Pmax1"),
    "average": of((4,), "R+Pavg0"),
    "product": of((4,), "R+Pproduct0+Pproduct1"),
    "strided": of((16, 3), "S[2]0R"),
    "sub-axis": of((8,), "S(0:(1)2)", Mesh((8,), ("x",))),
    "device order": of((4, 4), "S0S1", Mesh((2, 2), ("x", "y"), (7, 5, 3, 1))),
    "4096 devices": of((1 << 40, 1 << 40), "S0S1", Mesh((64, 64), ("data", "model"))),
    "4096 devices, partial": of((1 << 40, 5), "S1R+P0", Mesh((64, 64), ("data", "model"))),
    "many pieces": of((1 << 40,), "S[1073741824]0", Mesh((4,), ("x",))),
}


def test_layouts_in_words(check_golden):
    check_golden("explain.txt", "\n\n\n".join(explain(case, itemsize=4) for case in CASES.values()))


def test_without_an_itemsize_amounts_are_in_elements():
    last = explain(of((8, 4), "S0R")).splitlines()[-1]
    assert last == "a device holds (4, 4), 16 elements; all devices 64 elements; A is 32 elements"


def steps(*specs):
    """Steps by hand, which the planner need not find: kind, axes, dim, to_dim, reduction, spec."""
    found, before = [], specs[0]
    for *fields, spec in specs[1:]:
        found.append(Step(*fields, of((8, 8), before), of((8, 8), spec)))
        before = spec
    return ReshardPlan(of((8, 8), specs[0]), of((8, 8), before), tuple(found))


EVERY_STEP = steps(
    "S0R",
    ("slice", (1,), 1, None, None, "S0S1"),
    ("collective_permute", (0, 1), None, None, None, "S1S0"),
    ("all_to_all", (0,), 1, 0, None, "S10R"),
    ("exchange", (0, 1), None, None, None, "RS0"),
    ("all_gather", (0,), 1, None, None, "RR"),
    ("fill", (0,), None, None, "sum", "RR+P0"),
    ("fill", (1,), None, None, "max", "RR+P0+Pmax1"),
    ("all_reduce", (1,), None, None, "max", "RR+P0"),
    ("reduce_scatter", (0,), 0, None, "sum", "S0R"),
)


def test_every_kind_of_step_in_words(check_golden):
    check_golden("explain_plan.txt", explain(EVERY_STEP, itemsize=4))


@given(layout_pairs())
def test_a_pair_is_explained_as_its_plan(pair):
    plan = reshard(*pair)
    text = explain(*pair, itemsize=4)
    assert text == explain(plan, itemsize=4)
    numbers = re.findall(r"^(\d+)\. ([\w-]+)", text, flags=re.MULTILINE)
    kinds = [(str(i), step.kind.replace("_", "-")) for i, step in enumerate(plan.steps, 1)]
    assert numbers == kinds
    assert ("nothing to do" in text) == (not plan.steps)
    assert ("; no plan can move less" in text) == (plan.gap == 0)


def test_a_plan_above_the_bound_says_how_far():
    gathers = steps(
        "S0R", ("all_gather", (0,), 0, None, None, "RR"), ("slice", (0,), 1, None, None, "RS0")
    )
    assert "receive 512 B, 100.0% above the lower bound of 256 B" in explain(gathers, itemsize=4)
    assert "receive 2.62 KiB; the lower bound is 0 B" in explain(EVERY_STEP, itemsize=4)


def test_groups_of_many_devices_are_cut_short():
    mesh = Mesh((64, 64), ("data", "model"))
    text = explain(of((64, 64), "S0R", mesh), of((64, 64), "RR", mesh))
    assert "among 0,64,...,4032 | 1,65,...,4033 | 2,66,...,4034 | 3,67,...,4035 and 60 more" in text


def test_a_scalar_on_one_device_has_nothing_between_its_title_and_the_device():
    title, empty, device, *_ = explain(of((), "()", Mesh((1,), ("x",)))).splitlines()
    assert (title, empty, device) == ("A () as () on 1 device (x=1)", "", "device 0  A")


def test_local_transposes_are_named_where_a_step_is_not_along_dims():
    text = explain(of((8, 8), "S01R"), of((8, 8), "RS10"))
    assert "\n   local transpose before, (2, 2, 2, 2) by (2, 1, 0, 3)\n" in text
    assert "local transpose" not in explain(of((8, 8), "S01R"), of((8, 8), "RS01"))
