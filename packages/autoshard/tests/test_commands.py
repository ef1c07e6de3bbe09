import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from autoshard import Problem, SolverSession, evaluate
from autoshard.cli.benchmark import instances, objective_at
from autoshard.cli.commands import main
from autoshard.problem.solution import Incumbent
from autoshard.programs import mlp_step
from autoshard.solvers.session import CLOSED
from autoshard.solvers.solution_json import solution_from_json, solution_to_json

INSTANCES = Path(__file__).parent / "instances"


@pytest.fixture
def file(tmp_path):
    """A small problem whose limit binds."""
    costs = (np.array([0.0, 3.0]), np.array([0.0, 2.0]))
    table = np.array([[0.0, 1.0], [1.0, 5.0]])
    usages = (np.array([4.0, 1.0]), np.array([4.0, 1.0]))
    problem = Problem(costs, ((0, 1),), (table,), usages, ((0, 2), (1, 3)), 5.0)
    path = tmp_path / "small-Q.json.gz"
    path.write_bytes(gzip.compress(problem.to_json().encode()))
    return path


@pytest.mark.parametrize("method", ["auto", "ilp", "elimination"])
def test_solve_prints_and_writes_the_optimum(file, tmp_path, capsys, method):
    out = tmp_path / "solution.json"
    assert main(["solve", str(file), "--method", method, "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith("cost 3, bound 3, gap 0 %")
    found = solution_from_json(out.read_text())
    assert found.objective == evaluate(Problem.from_file(file), found.choice).cost == 3.0


def test_solve_begins_with_a_solution(file, tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    main(["solve", str(file), "--out", str(first)])
    command = ["solve", str(file), "--method", "message_passing", "--steps", "1"]
    assert main([*command, "--start", str(first), "--out", str(second)]) == 0
    assert solution_from_json(second.read_text()).trace[0].objective == 3.0


def test_show_says_what_is_in_a_file_and_judges_a_solution(file, tmp_path, capsys):
    out = tmp_path / "solution.json"
    run = SolverSession(Problem.from_file(file), time_s=math.inf)
    run.offer([0, 1])
    out.write_text(solution_to_json(run.solution("hand"), peak_bytes=None))
    assert main(["show", str(file), "--solution", str(out)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in shown] == [
        "nodes",
        "strategies",
        "edges",
        "forbidden strategies",
        "usage limit",
        "peak usage",
        "times that can bind",
        "solution",
        "cost and bound",
        "peak usage",
    ]
    assert "2 if each node uses its least, 8 if its most" in shown[5]
    assert "feasible, by hand in " in shown[7]
    assert "cost 3, no bound yet" in shown[8]


def test_bench_writes_table_record_and_picture(file, tmp_path, capsys):
    known = {"Q": {"best": 2.0, "time_s": 5.0}}
    (tmp_path / "known.json").write_text(json.dumps(known))
    out = tmp_path / "out"
    command = ["bench", str(tmp_path), "--methods", "auto", "elimination", "--out", str(out)]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 2
    assert "+50.000 %" in printed.out
    records = json.loads((out / "bench.json").read_text())
    assert [(r["method"], r["objective"], r["best_known"]) for r in records] == [
        ("auto", 3.0, 2.0),
        ("elimination", 3.0, 2.0),
    ]
    assert all(r["gap"] <= CLOSED and r["peak_bytes"] > 1e6 and r["trace"] for r in records)
    assert (out / "bench.md").read_text().count("\n") == 4
    assert (out / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_bench_goes_on_after_what_cannot_be_solved(file, tmp_path, capsys):
    (tmp_path / "a.json").write_text("{}")
    assert main(["bench", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in printed[1:3]] == ["a", "Q"]
    assert printed[3].startswith("a, auto: IOPDDL JSON has")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["solve", "missing.json"], "missing.json"),
        (["show", "missing.json"], "missing.json"),
        (["bench", "missing"], "a folder to bench has files"),
    ],
)
def test_what_is_missing_is_one_line(capsys, command, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(command) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--time", "0"],
        ["--time", "x"],
        ["--steps", "0"],
        ["--seed", "-1"],
        ["--method", "magic"],
        ["--out", "/nowhere/out.json"],
    ],
)
def test_wrong_usage_is_one_line_and_exits_with_2(file, arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["solve", str(file), *arguments])
    assert caught.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("python -m autoshard solve: error: argument --")
    assert printed.count("\n") == 1


def test_a_file_that_is_cut_short_is_one_line(file, capsys):
    file.write_bytes(file.read_bytes()[:-20])
    assert main(["show", str(file)]) == 1
    assert "gzipped or not" in capsys.readouterr().err


def test_show_prints_a_graph(tmp_path, capsys):
    graph = mlp_step(batch=8, width=4, hidden=8)
    path = tmp_path / "mlp.json"
    path.write_text(graph.to_json())
    assert main(["show", str(path)]) == 0
    assert capsys.readouterr().out == f"{graph}\n"


def test_what_is_no_text_is_one_line(file, tmp_path, capsys):
    path = tmp_path / "solution.json"
    path.write_bytes(b"\xff\xfe")
    assert main(["solve", str(file), "--start", str(path)]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("error: a file is text")
    assert printed.count("\n") == 1


def test_the_two_smallest_instances_are_there_with_what_is_known():
    listed = instances(INSTANCES)
    assert [(i.name, i.time_s, i.best, i.bound) for i in listed] == [
        ("B", 60.0, 532_843.0, 532_843.0),
        ("G", 120.0, 217_039.0, 216_933.0),
    ]
    assert [Problem.from_file(i.path).n_nodes for i in listed] == [816, 816]


def test_the_objective_at_a_time_is_that_of_the_last_improvement_before():
    trace = [Incumbent(1.0, math.inf, 0.0), Incumbent(2.0, 9.0, 0.0), Incumbent(4.0, 7.0, 0.0)]
    assert [objective_at(trace, t) for t in (0.0, 1.0, 2.0, 3.9, 4.0)] == [
        math.inf, math.inf, 9.0, 9.0, 7.0
    ]  # fmt: skip
