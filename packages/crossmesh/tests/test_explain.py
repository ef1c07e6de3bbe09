import math

import pytest
from crossmesh import Links, PlanError, UnitTask, plan, simulate
from crossmesh.report.explain import explain
from crossmesh.report.totals import busy_s, bytes_between, gap_text, timed, total_bytes
from crossmesh.testing import batches, transfers
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec

STRATEGIES = st.sampled_from(
    ["broadcast", "send_recv", "local_allgather", "global_allgather", "signal"]
)


def layout(shape, spec, mesh, first):
    n = math.prod(mesh)
    names = tuple(f"axis{i}" for i in range(len(mesh)))
    return Layout(shape, Mesh(mesh, names, tuple(range(first, first + n))), Spec.parse(spec))


def tables(text):
    """The words of each row of the tables in a text, by the first heading of each table."""
    by_heading = {}
    for part in text.split("\n\n"):
        head, *rows = part.splitlines()
        by_heading[head.split()[0]] = [row.split() for row in rows if not row.startswith("and ")]
    return by_heading


@given(transfers(), STRATEGIES)
def test_bytes_between_hosts_are_those_that_hosts_send_and_receive(transfer, strategy):
    made = plan(
        transfer.src, transfer.dst, transfer.dtype, transfer.hosts, strategy=strategy, steps=1000
    )
    between = bytes_between(made)
    for end, per_host in enumerate((made.sent_bytes, made.received_bytes)):
        for host, n_bytes in per_host:
            assert n_bytes == sum(n for pair, n in between.items() if pair[end] == host)


@given(transfers())
def test_busy_times_of_all_ports_are_those_of_the_timeline(transfer):
    made = plan(
        transfer.src, transfer.dst, transfer.dtype, transfer.hosts, transfer.links, steps=1000
    )
    timeline = simulate(made)
    busy = busy_s(timeline)
    for host in {host for _, host in made.hosts}:
        for way in ("in", "out"):
            assert busy.get((host, way), 0.0) == timeline.busy_s(host, way)


@given(batches(), st.booleans())
def test_every_plan_is_explained_with_each_tensor_host_and_task(batch, with_links):
    links = batch.links if with_links else None
    made = plan(batch.src, batch.dst, batch.dtype, batch.hosts, links, steps=1000)
    text = explain(made)
    for tensor in made.tensors:
        assert text.count(f"{tensor.name}: {tensor.dtype} ") == 1
    if not made.tasks:
        assert text.endswith("nothing is sent: every device has what it needs")
        return
    found = tables(text)
    assert [row[0] for row in found["task"]] == [str(task.index) for task in made.tasks][:16]
    assert [row[0] for row in found["host"]] == [str(host) for host, _ in made.sent_bytes][:16]


def test_without_rates_a_host_sends_all_tensors_once_in_t():
    whole = layout((1000,), "R", (1,), 0)
    both = layout((1000,), "R", (2,), 1)
    made = plan(whole, both, "int8", strategy="send_recv")
    assert total_bytes(made) == 1000
    assert timed(made, None).timeline.time_s == pytest.approx(2.0)
    assert "2 t, 100.0 % above the lower bound of 1 t; a host sends 1,000 B in t" in explain(made)


def test_given_links_come_before_those_of_the_plan():
    whole, other = layout((1000,), "R", (1,), 0), layout((1000,), "R", (1,), 1)
    slow, fast = (Links(rate, device_bytes_per_s=1e9, latency_s=0.0) for rate in (100.0, 1000.0))
    made = plan(whole, other, "int8", links=slow)
    assert "\n10 s, no plan takes less\n" in explain(made)
    assert "\n1 s, no plan takes less\n" in explain(made, fast)
    assert gap_text(timed(made, fast)) == "1 s, no plan takes less"


def test_a_host_without_rate_cannot_be_explained():
    made = plan(layout((8,), "R", (1,), 0), layout((8,), "R", (1,), 1), "int8")
    with pytest.raises(PlanError, match=r"but not \[0\]"):
        explain(made, Links({1: 1.0}, device_bytes_per_s=1e9, latency_s=0.0))


def test_terms_of_a_sum_are_joined_by_plus_and_the_sum_follows_the_arrow():
    partial, whole = layout((4,), "R+P0", (2,), 0), layout((4,), "R", (2,), 0)
    text = explain(plan(partial, whole, "float32"))
    assert "1 (1) + 0 (0) -> 0 (0) -> 1 (1)" in text or "0 (0) + 1 (1) -> 1 (1) -> 0 (0)" in text


def test_what_stays_inside_hosts_is_said_so():
    made = plan(layout((4,), "R", (1,), 0), layout((4,), "R", (1,), 1), "int8", {0: 5, 1: 5})
    assert "1 task, broadcast, order ensemble: all inside hosts" in explain(made)


def test_a_part_of_a_task_says_which():
    src, dst = layout((1200,), "R", (2,), 0), layout((1200,), "S0", (3,), 2)
    text = explain(plan(src, dst, "int8"))
    assert "tensor[400:800], 0 % to 50 %" in text
    assert "tensor[400:800], 50 % to 100 %" in text


def test_long_tables_are_cut_and_the_rest_counted():
    names = [f"w{i:02}" for i in range(20)]
    src, dst = layout((20, 2), "S0R", (20,), 0), layout((20, 2), "S0R", (20,), 20)
    made = plan(dict.fromkeys(names, src), dict.fromkeys(names, dst), "int8")
    text = explain(made)
    assert "and 4 more tensors" in text
    assert "and 24 more hosts" in text
    assert "and 4 more pairs" in text
    assert "and 4 more tasks" in text
    assert "w00[0:1, 0:2] and 19 more" in text


def test_a_long_path_is_cut():
    made = plan(layout((4,), "R", (1,), 0), layout((4,), "R", (9,), 1), "int8")
    assert isinstance(made.tasks[0], UnitTask)
    assert "-> 6 (6) -> 3 more hosts" in explain(made)
