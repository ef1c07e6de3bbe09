"""The commands for graphs and shardings; docs/autoshard.md, which is tested, shows their output."""

import inspect
import subprocess
import sys

import pytest
from autoshard import Graph, GraphBuilder, Problem, Sharding, shard
from autoshard.cli.commands import main
from shardspec import Spec


def layers(n=2):
    graph = GraphBuilder()
    x = graph.input("x", 64, 64)
    for weight in [graph.parameter(f"w{layer}", 64, 64) for layer in range(n)]:
        x = graph.dot(x, weight)
    graph.output(x)
    return graph.build()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph.txt").write_text(str(layers()))
    (tmp_path / "graph.json").write_text(layers().to_json())
    (tmp_path / "problem.json").write_text(Problem((), (), (), (), ()).to_json())
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    return tmp_path


SHARD = ("--mesh", "2x2", "--cluster", "two-hosts")


@pytest.mark.parametrize("file", ["graph.txt", "graph.json"])
def test_shard_writes_what_show_reads(here, capsys, file):
    assert main(["shard", file, *SHARD, "--pin", "w0=S0R", "--out", "out.json"]) == 0
    shown = capsys.readouterr().out
    found = Sharding.from_json((here / "out.json").read_text())
    assert shown == f"{found}\n\nwrote out.json\n"
    assert found.graph == layers()
    assert dict(found.input_specs)["w0"] == Spec.parse("S0R")
    assert main(["show", "out.json"]) == 0
    assert capsys.readouterr().out == f"{found}\n"
    assert main(["show", "out.json", "--explain", "w0", "--diff", "out.json"]) == 0
    assert capsys.readouterr().out == f"{found.explain('w0')}\n\nnothing is different\n"


def test_options_of_the_search_are_passed_on(here, capsys):
    command = ["shard", "graph.txt", "--mesh", "3", "--cluster", "two-hosts"]
    assert main([*command, "--uneven", "--tie", "--time", "5", "--out", "out.json"]) == 0
    assert capsys.readouterr().err == ""
    found = Sharding.from_json((here / "out.json").read_text())
    assert found.options.uneven


def test_every_option_of_shard_is_one_of_the_command(monkeypatch, here):
    given = {}

    def record(graph, mesh, cluster, **options):
        given.update(options)
        return shard(graph, mesh, cluster)

    monkeypatch.setattr("autoshard.cli.shard.shard", record)
    words = """--memory 1GiB --memory-rule largest --restrict zero --time 5 --steps 7 --gap 0.1
        --method ilp --tie --coarse O2 --polish --no-compare --uneven --strided --overlap 0.5
        --bucket 1MiB --in-flight 2 --pin w0=RR"""
    assert main(["shard", "graph.txt", *SHARD, *words.split()]) == 0
    parameters = inspect.signature(shard).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert given.keys() == defaults.keys()
    assert not [name for name, value in given.items() if value == defaults[name]]
    assert (given["overlap"], given["steps"], given["bucket_bytes"]) == (0.5, 7, 2**20)


def test_show_prints_the_text_of_a_graph(here, capsys):
    for file in ("graph.json", "graph.txt"):
        assert main(["show", file]) == 0
        assert Graph.parse(capsys.readouterr().out) == layers()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["shard", "nothing", *SHARD], "No such file or directory: 'nothing'"),
        (["shard", "bytes", *SHARD], "a file is text, or gzipped text"),
        (["shard", "graph.txt", "--mesh", "3x3", "--cluster", "two-hosts"], "lies in 0..7"),
        (["shard", "graph.txt", "--mesh", "2", "--cluster", "cat"], "no preset is called 'cat'"),
        (["shard", "graph.txt", *SHARD, "--memory", "0"], "the smallest peak found is"),
        (["shard", "graph.txt", *SHARD, "--pin", "w0=S7R"], "cannot be S7R"),
        (["shard", "graph.txt", *SHARD, "--pin", "cat=RR"], "got 'cat', which is none"),
        (["shard", "graph.txt", *SHARD, "--picture", "x.pdf"], r"ends in .png or .svg"),
        (["show", "nothing"], "No such file or directory: 'nothing'"),
        (["show", "graph.json", "--diff", "graph.json"], "are for shardings; the file is a graph"),
        (["show", "graph.txt", "--explain", "x"], "are for shardings; the file is a graph"),
        (["show", "problem.json", "--explain", "x"], "are for shardings; the file is a problem"),
    ],
    ids=lambda of: " ".join(of) if isinstance(of, list) else "",
)
def test_what_goes_wrong_is_one_line_and_status_1(here, capsys, command, message):
    assert main(command) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--mesh", "2y4", "a mesh is written 2x4, or data=2,model=4"),
        ("--mesh", "0x2", "at least one device"),
        ("--mesh", "x=2,x=2", "axis names are distinct"),
        ("--memory", "-1", "as 1.5GiB; got '-1'"),
        ("--pin", "w0", "a pin is written VALUE=SPEC, as w1=RS0; got 'w0'"),
        ("--pin", "w0=Q", "a spec is a letter for each dim"),
        ("--out", "nowhere/out.json", "into a folder that exists; got 'nowhere/out.json'"),
        ("--picture", "nowhere/a.svg", "into a folder that exists; got 'nowhere/a.svg'"),
        ("--in-flight", "0", "a count is a whole number >= 1; got '0'"),
        ("--gap", "2", "a share is a number from 0 to 1; got '2'"),
    ],
    ids=lambda of: of[:12],
)
def test_wrong_usage_says_how_it_is_written(here, capsys, option, text, message):
    with pytest.raises(SystemExit) as exit_:
        main(["shard", "graph.txt", *SHARD, option, text])
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


def test_a_reader_that_has_seen_enough_is_no_error(here):
    (here / "long.json").write_text(layers(3000).to_json())  # more than a pipe holds
    show = subprocess.Popen(
        [sys.executable, "-m", "autoshard", "show", "long.json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert show.stdout.readline().startswith(b"phases: ")
    show.stdout.close()
    with show.stderr as errors:
        assert errors.read() == b""
    assert show.wait() == 0
