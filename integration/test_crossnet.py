"""The runs of each figure are those of the paper, and they run between emulated hosts.

These tests do not check times: `python integration/crossnet` measures them, on a machine without
other work, for docs/crossmesh_figures.md.
"""

from __future__ import annotations

import dataclasses
import json
import os

import netlab
import pytest
from crossnet.measure import Measured, lab, measure
from crossnet.report import BEGIN, END, as_json, draw, record, rewrite
from crossnet.runs import FIGURES

SMALL = (64, 64, 64)  # 1 MiB, which takes a tenth of a second on the links at most

MISSING = netlab.supported()
on_a_lab = pytest.mark.skipif(bool(MISSING), reason=f"no lab can be brought up: {MISSING}")
backends = pytest.mark.parametrize("backend", ["gloo", "mpi"])


def predicted(figure, method):
    runs = [run for run in FIGURES[figure]() if run.method == method]
    return {run.case: run.predicted_s / run.t_s for run in runs}


def test_figure_5_has_one_host_of_1_to_4_devices_and_1_to_4_hosts_of_2():
    receivers = {
        run.case: (len(run.planned_bytes) - 1, len(run.plan.hosts) - 1)
        for run in FIGURES["figure5"]()
    }
    assert sorted(receivers.values()) == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 4), (3, 6), (4, 8)]


def test_baselines_take_what_the_paper_says():
    """Section 3.1: A B t, A t, and t with a final all-gather over all A B receivers of 5.1.1."""
    assert predicted("figure5", "send/recv")["4 hosts x 2"] == pytest.approx(8)
    assert predicted("figure5", "local all-gather")["4 hosts x 2"] == pytest.approx(4)
    assert predicted("figure5", "Alpa")["4 hosts x 2"] == pytest.approx(1 + 7 / 8)
    assert predicted("figure5", "broadcast")["4 hosts x 2"] == pytest.approx(1 + 3 / 100)


@pytest.mark.parametrize(("figure", "method"), [("figure6", "broadcast"), ("figure8", "ensemble")])
def test_the_nine_cases_are_planned_within_3_percent_of_the_bound(figure, method):
    runs = [run for run in FIGURES[figure]() if run.method == method]
    assert [run.case for run in runs] == [f"case {number}" for number in range(1, 10)]
    assert max(run.predicted_s / run.bound_s for run in runs) < 1.03


def test_a_report_has_a_row_for_each_case_and_the_distance_to_the_plan(tmp_path):
    runs = list(FIGURES["figure6"](SMALL))
    seen = {
        run.plan.digest: Measured(
            (1.05 * run.predicted_s + 1e-3,), run.planned_bytes, dict.fromkeys(run.planned_bytes, 0)
        )
        for run in runs
    }
    about = {"date": "2026-01-01", "versions": "torch 1"}
    recorded = json.loads(as_json(record("gloo", about, runs, seen)))
    page = tmp_path / "page.md"
    page.write_text(f"Before.\n{BEGIN}\nold\n{END}\nAfter.\n")
    rewrite(page, {"figure6": [recorded]})
    text = page.read_text()
    assert text.startswith("Before.\n")
    assert text.endswith("After.\n")
    assert text.count("| case ") == 9
    assert "differ from the plan's by up to 0.0% of the busiest host's" in text
    assert "old" not in text


def test_pictures_of_equal_figures_are_equal(tmp_path):
    runs = list(FIGURES["figure8"](SMALL))
    seen = {
        run.plan.digest: Measured(
            (run.predicted_s,), run.planned_bytes, dict.fromkeys(run.planned_bytes, 0)
        )
        for run in runs
    }
    recorded = record("mpi", {"date": "", "versions": ""}, runs, seen)
    paths = [tmp_path / name for name in ("a.svg", "b.svg")]
    for path in paths:
        draw("figure8", [recorded], path.with_name("figure8.svg"))
        path.with_name("figure8.svg").rename(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


@on_a_lab
@backends
def test_hosts_move_the_bytes_of_the_plan(backend):
    """The processes verify what arrives, and raise an error for a wrong byte."""
    runs = [
        dataclasses.replace(run, rounds=1)
        for run in FIGURES["figure5"](SMALL)
        if run.case == "1 host x 2"
    ]
    with lab(2, f"cn{os.getpid()}") as hosts:
        seen = measure(hosts, backend, runs)
        assert hosts.drops() == 0
    silent = seen[runs[-1].plan.digest].n_bytes
    assert runs[-1].method == "signal"
    for run in runs[:-1]:
        counted = seen[run.plan.digest].n_bytes
        for host, planned in run.planned_bytes.items():
            # Headers and acknowledgements add bytes; other messages vary a little between runs.
            assert 1.0 < (counted[host] - silent[host]) / planned < 1.02
