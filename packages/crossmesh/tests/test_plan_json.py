"""Plans as JSON: equal after reading, and any other text is a typed error."""

import json
import math
from pathlib import Path

import pytest
from crossmesh import Links, RecordError, TransferPlan, plan
from crossmesh.testing import batches, check_plan, transfers
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec


@given(transfers())
def test_plan_of_one_tensor_is_read_back_equal(transfer):
    t = transfer
    made = plan(t.src, t.dst, t.dtype, t.hosts, t.links)
    read = TransferPlan.from_json(made.to_json())
    assert (read, read.digest) == (made, made.digest)
    check_plan(read)


@given(batches(), st.sampled_from(["broadcast", "local_allgather"]))
def test_plan_of_a_batch_is_read_back_equal(batch, strategy):
    b = batch
    made = plan(b.src, b.dst, b.dtype, b.hosts, strategy=strategy, fuse_bytes=40)
    assert TransferPlan.from_json(made.to_json()) == made


MESHES = [Mesh((2,), ("x",), (first, first + 1)) for first in (0, 2)]
MADE = plan(
    Layout((6, 3), MESHES[0], Spec.parse("RR+P0")),
    Layout((6, 3), MESHES[1], Spec.parse("S0R"), "balanced"),
    "bfloat16",
    {0: 0, 1: 0, 2: 1, 3: 2},
    Links({0: 1.0, 1: 2.0, 2: 3.5}, math.inf, 0.0),
)


def test_infinite_rates_are_read_back():
    assert TransferPlan.from_json(MADE.to_json()).links == MADE.links


def test_text_is_plain_json():
    def no_constant(name):
        raise AssertionError(name)

    assert json.loads(MADE.to_json(), parse_constant=no_constant)["version"] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a plan is JSON"),
        ("[" * 100_000, "a plan is JSON; "),
        ("NaN", "it has no NaN"),
        ("9" * 5000, "a plan is JSON"),
        ("[]", "an object with the entries crossmesh, version"),
        ("{}", "an object with the entries"),
    ],
)
def test_refuses_text_that_is_no_plan(text, message):
    with pytest.raises(RecordError, match=message):
        TransferPlan.from_json(text)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["version"], 3, "a newer crossmesh, in version 3 .* reads versions 1 to 2: update"),
        (["version"], 0, r"this kind and version: .* got \['TransferPlan', 0\]"),
        (["version"], True, "version is a whole number of 64 bits; got True"),
        (["strategy"], "teleport", "strategy is one of broadcast, .* got 'teleport'"),
        (["order"], "alphabetic", "order is one of naive, .* got 'alphabetic'"),
        (["links", "latency_s"], -1, "links: a latency is a number, finite and not negative; got"),
        (["links", "latency_s"], "0", "links latency_s is a number; got '0'"),
        (["links", "host_bytes_per_s", 0], [0], r"a list of 2; got \[0\]"),
        (["links", "host_bytes_per_s"], [[0, 1.0]], r"links: every host needs a rate .* not \["),
        (["digest"], 7, "digest is a text; got 7"),
        (["hosts", 1, 0], 0, "one pair a device, sorted by device"),
        (["hosts", 1, 0], 2.0, r"hosts\[1\]\[0\] is a whole number of 64 bits; got 2.0"),
        (["hosts", 1, 0], 2**63, "a whole number of 64 bits"),
        (["layouts", 0, "spec"], "nonsense", r"layouts\[0\]: a spec is a letter"),
        (["layouts", 0, "mesh"], [3], "needs 3 distinct device ids"),
        (["layouts", 0, "device_ids"], [0, 9], "devices that have a host"),
        (["layouts", 1, "chunking"], [[1], "ceil"], "explicit chunk sizes are one for each"),
        (["layouts", 1, "chunking"], ["fair", "ceil"], "one of ceil, nested, .* got 'fair'"),
        (["layouts", 1, "shape"], [6, 4], "two layouts of one shape"),
        (["tensors", 0, "dtype"], "float31", "the name of a dtype, .* got 'float31'"),
        (["tensors", 0, "dtype"], "<f4", "the name of a dtype, .* got '<f4'"),
        (["tensors", 0, "src"], 2, r"tensors\[0\] src is an index from 0, below 2; got 2"),
        (["tensors", 0, "src"], -1, r"tensors\[0\] src is an index from 0, below 2; got -1"),
        (["copies"], [{"device": 7, "pieces": []}], "devices that have a host; got"),
        (["tasks", 0, "pieces"], 9, r"tasks\[0\] pieces is an index from 0, below 2; got 9"),
        (["pieces", 0, 0, 0], 1, "tensor is an index from 0, below 1; got 1"),
        (["pieces", 0, 0, 1, 0, 1], 7, r"box is within a tensor of shape \(6, 3\)"),
        (["pieces", 0, 0, 1], [], r"box is within a tensor of shape \(6, 3\)"),
        (["tasks", 0, "part", 1], 20, r"tasks\[0\] part is some of the 18 bytes"),
        (["tasks", 0, "part", 1], 0, r"tasks\[0\] part is some of the 18 bytes"),
        (["tasks", 0, "terms"], [[0]], "2 terms, receivers"),
        (["tasks", 0, "terms", 0], [0, 1], "one device of each term"),
        (["tasks", 0, "reduction", 0, 0], "mean", "one of sum, max, .* got 'mean'"),
        (["tasks", 0, "reduction", 0, 1], 1, "a kind and a number of terms above 1"),
        (["tasks", 0, "receivers"], [], "devices that have a host"),
        (["tasks", 0, "path"], [0, 1, 3, 3], "one device of each term, then the receivers"),
        (["tasks", 0, "path"], [0], "one device of each term, then the receivers"),
        (["tasks", 0, "n_chunks"], 0, "at least one chunk"),
    ],
)
def test_says_which_part_does_not_fit(path, value, message):
    document = json.loads(MADE.to_json())
    at = document
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(RecordError, match=message):
        TransferPlan.from_json(json.dumps(document))


@pytest.mark.parametrize("change", [list.pop, list.reverse, lambda tasks: tasks.append(tasks[0])])
def test_refuses_tasks_that_are_not_those_that_were_written(change):
    document = json.loads(MADE.to_json())
    change(document["tasks"])
    with pytest.raises(RecordError, match="the text was changed after it was written"):
        TransferPlan.from_json(json.dumps(document))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(st.data(), JSON)
def test_any_change_is_a_plan_or_a_typed_error(data, value):
    document = json.loads(MADE.to_json())
    at = document
    while True:
        key = data.draw(st.sampled_from(list(at) if isinstance(at, dict) else range(len(at))))
        if not isinstance(at[key], list | dict) or not at[key] or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = value
    try:
        read = TransferPlan.from_json(json.dumps(document))
    except RecordError:
        return
    assert TransferPlan.from_json(read.to_json()) == read


def test_a_plan_is_written_as_it_always_was(check_golden):
    check_golden("plan_version_2.json", MADE.to_json())


def test_plans_of_the_first_version_are_read_and_changed_ones_refused():
    text = Path(__file__).parent.joinpath("golden", "plan_version_1.json").read_text()
    assert TransferPlan.from_json(text) == MADE
    document = json.loads(text)
    document["tasks"].reverse()
    with pytest.raises(RecordError, match="the text was changed after it was written"):
        TransferPlan.from_json(json.dumps(document))


def test_pieces_of_several_tasks_are_written_once():
    many = Mesh((4,), ("x",), (0, 1, 2, 3))
    spread = plan(
        Layout((64,), many, Spec.parse("S0")),
        Layout((64,), Mesh((2,), ("x",), (4, 5)), Spec.parse("R")),
        "float32",
        strategy="send_recv",
    )
    document = json.loads(spread.to_json())
    assert (len(document["tasks"]), len(document["pieces"])) == (8, 4)
