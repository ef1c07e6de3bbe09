import pytest
from crossmesh.report.cases import cases, rows_as_hosts
from crossmesh.report.compare import PAPER, WAYS, compare, compare_case, compare_text
from crossmesh.report.totals import timed
from shardspec import Mesh

OPTIMA = [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 0.5]


def test_there_are_nine_cases_numbered_from_1():
    assert [case.number for case in cases()] == [*range(1, 10)]


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"case-{case.number}")
def test_each_row_of_a_mesh_is_a_host(case):
    for layout in (case.src, case.dst):
        rows, length = layout.mesh.shape
        devices = [*layout.mesh.device_ids]
        of_rows = [{case.hosts[d] for d in devices[i * length :][:length]} for i in range(rows)]
        assert [len(hosts) for hosts in of_rows] == [1] * rows
    assert len(set(case.hosts.values())) == case.src.mesh.shape[0] + case.dst.mesh.shape[0]


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"case-{case.number}")
def test_times_of_a_case_are_those_of_the_papers_model(case):
    found = compare_case(case)
    assert {timeline.lower_bound_s for timeline in found.values()} == {OPTIMA[case.number - 1]}
    # A broadcast's last host is K - 1 chunks behind the first, K = 100.
    assert found["ensemble"].time_s == pytest.approx(OPTIMA[case.number - 1], rel=0.021)
    assert found["ensemble"].time_s <= found["load_balance"].time_s
    assert found["local_allgather"].time_s <= found["send_recv"].time_s
    assert found.keys() == PAPER.keys()


def test_a_mesh_without_axes_is_a_host():
    assert rows_as_hosts(Mesh((), ()), Mesh((2,), ("x",), (1, 2))) == {0: 0, 1: 1, 2: 1}


def test_compare_plans_in_every_way():
    case = cases((8, 8, 8))[2]
    plans = compare(case.src, case.dst, "float32", case.hosts)
    assert [*plans] == [*WAYS]
    for way, made in plans.items():
        assert (made.strategy, made.order) == (way.strategy, way.order)
    lines = compare_text(plans).splitlines()
    assert lines[0] == "lower bound 0.5 t"
    assert len(lines) == 3 + len(WAYS)


def test_all_ways_have_the_same_lower_bound():
    case = cases((12, 12, 12))[5]
    plans = compare(case.src, case.dst, "int8", case.hosts)
    assert len({timed(made, None).timeline.lower_bound_s for made in plans.values()}) == 1
