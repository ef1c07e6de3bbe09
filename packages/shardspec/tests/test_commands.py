import io
import json
import os
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec, __version__, draw, explain, reshard
from shardspec.cli.commands import main
from shardspec.notation import notation

MESH = Mesh((2, 2), ("x", "y"))
COMMAND = [sys.executable, "-m", "shardspec"]


def run(capsys, line):
    main(shlex.split(line))
    return capsys.readouterr().out


def refused(capsys, arguments):
    """The one line that a wrong use ends with."""
    with pytest.raises(SystemExit) as caught:
        main(shlex.split(arguments) if isinstance(arguments, str) else arguments)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith("\n")
    return err


def of(shape, spec, mesh=MESH, chunking="ceil"):
    return Layout(shape, mesh, Spec.parse(spec), chunking)


def test_show_draws_and_explains(capsys):
    out = run(capsys, "show S0R --mesh 2x2 --shape 4x4 --itemsize 4")
    layout = of((4, 4), "S0R")
    title, body = explain(layout, itemsize=4).split("\n", 1)
    assert out == f"{title}\n\n{draw(layout, title=False)}\n{body}\n"


@pytest.mark.parametrize(
    ("options", "layout"),
    [
        ("S0 --mesh 4 --shape 8", of((8,), "S0", Mesh((4,), ("x",)))),
        ("S0 --mesh data=4 --shape 8", of((8,), "S0", Mesh((4,), ("data",)))),
        ("S0 --mesh 2x1x1x1x1", of((2,), "S0", Mesh((2, 1, 1, 1, 1), tuple(
            f"axis{i}" for i in range(5))))),
        ("S01R --mesh 2x2", of((4, 1), "S01R")),
        ("'()' --mesh 2x2 --shape '()'", of((), "()")),
        ("S0R --mesh 2x2 --shape 0,4", of((0, 4), "S0R")),
        ("S0 --mesh 2x2 --devices 3,1,8-9 --shape 4", of(
            (4,), "S0", Mesh((2, 2), ("x", "y"), (3, 1, 8, 9)))),
        ("S01 --mesh 2x2 --shape 7 --chunking balanced", of((7,), "S01", chunking="balanced")),
        ("S0S1 --mesh 2x2 --shape 8x7 --chunking 5+3,padded", of(
            (8, 7), "S0S1", chunking=((5, 3), "padded"))),
        ("'(S(0), P)' --from sbp --mesh 2x2 --shape 5", of((5,), "S0+P1", chunking="balanced")),
        ("'{devices=[2,2]<=[2,2]T(1,0)}' --from hlo --mesh 2x2 --shape 4x4", of((4, 4), "S1S0")),
    ],
    ids=str,
)  # fmt: skip
def test_options_say_the_layout(capsys, options, layout):
    assert run(capsys, f"show {options}").splitlines()[0] == explain(layout).splitlines()[0]
    shown = json.loads(run(capsys, f"show {options} --json"))
    assert shown["shape"] == list(layout.shape)
    assert shown["mesh"]["device_ids"] == list(layout.mesh.device_ids)
    for device in shown["devices"]:
        runs = tuple(tuple(map(tuple, of_dim)) for of_dim in device["intervals"])
        assert runs == layout.runs(device["id"])
        assert tuple(device["coordinates"]) == layout.mesh.coordinates(device["id"])
        assert tuple(device["local_shape"]) == layout.local_shape(device["id"])


@pytest.mark.parametrize(
    ("option", "size"), [("--itemsize 3", 3), ("--dtype bfloat16", 2), ("--dtype complex128", 16)]
)
def test_bytes_are_those_of_the_type(capsys, option, size):
    shown = json.loads(run(capsys, f"show S0 --mesh 2 --shape 8 --json {option}"))
    assert [device["local_bytes"] for device in shown["devices"]] == [4 * size] * 2


def test_json_says_what_is_partial_and_who_holds_copies(capsys):
    shown = json.loads(run(capsys, "show R+Pmax0 --mesh data=2,model=2 --shape 4 --json"))
    assert shown["spec"] == "R+Pmax0"
    assert shown["partial"] == [{"axis": "data", "kind": "max"}]
    assert shown["replica_groups"] == [[0, 1], [2, 3]]
    assert shown["mesh"]["axes"] == {"data": 2, "model": 2}
    assert shown["chunking"] == ["ceil"]
    assert "local_bytes" not in shown["devices"][0]


def test_reshard_explains_the_plan(capsys):
    out = run(capsys, "reshard S0R RS0 --mesh 2x2 --shape 8x8 --dtype float32")
    assert out == explain(of((8, 8), "S0R"), of((8, 8), "RS0"), itemsize=4) + "\n"


def test_reshard_takes_the_smallest_shape_that_is_even_on_both_sides(capsys):
    plan = json.loads(run(capsys, "reshard S0R S1R --mesh 2x3 --json"))
    assert plan["shape"] == [6, 1]


def test_reshard_uses_the_collectives_that_it_may(capsys):
    pair = "S01R RS01 --mesh 2x2 --shape 8x8 --json"
    kinds = [step["kind"] for step in json.loads(run(capsys, f"reshard {pair}"))["steps"]]
    assert kinds == ["all_to_all"]
    limited = run(capsys, f"reshard {pair} --collectives slice,all_gather --max-local-elements 64")
    assert {step["kind"] for step in json.loads(limited)["steps"]} == {"slice", "all_gather"}


def test_json_of_a_plan_has_its_figures(capsys):
    pair = of((8, 8), "RS1+P0"), of((8, 8), "S0S1")
    plan = reshard(*pair)
    options = "--mesh 2x2 --shape 8x8"
    shown = json.loads(run(capsys, f"reshard RS1+P0 S0S1 {options} --itemsize 4 --json"))
    assert shown["unit"] == "bytes"
    assert shown["total"] == plan.total_bytes(4)
    assert shown["lower_bound"] == plan.lower_bound_bytes(4)
    assert shown["received"] == plan.received_bytes(4)
    assert shown["peak"] == plan.peak_bytes(4)
    (step,) = shown["steps"]
    assert (step["kind"], step["axes"], step["reduction"]) == ("reduce_scatter", ["x"], "sum")
    assert (step["src"], step["dst"]) == ("RS1+P0", "S0S1")
    assert step["groups"] == [[0, 2], [1, 3]]
    assert step["largest_shard"] == 64
    in_elements = json.loads(run(capsys, f"reshard RS1+P0 S0S1 {options} --json"))
    assert (in_elements["unit"], in_elements["total"] * 4) == ("elements", shown["total"])


@pytest.mark.parametrize("target", ["alpa", "hlo", "shardy", "jax", "torch"])
def test_convert_prints_the_other_notation(capsys, target):
    out = run(capsys, f"convert --from alpa --to {target} S0S1 --mesh 2x2 --shape 4x4")
    assert out == notation(target).dump(of((4, 4), "S0S1")) + "\n"


def test_convert_knows_styles(capsys):
    convert = "convert S01R --mesh 2x2 --shape 4x4"
    assert run(capsys, f"{convert} --to alpa --style colossal") == "[S01, R]\n"
    assert run(capsys, f"{convert} --to hlo --style 1") == "{devices=[4,1]0,1,2,3}\n"


@pytest.mark.parametrize("command", ["show S0R", "reshard S0R RS0"])
def test_pictures_are_written(capsys, tmp_path, command):
    path = tmp_path / "out.svg"
    run(capsys, f"{command} --mesh 2x2 --shape 4x4 --picture {path}")
    assert path.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "the following arguments are required: command"),
        ("shwo S0R", "invalid choice: 'shwo'"),
        ("show S0R", "a spec names no devices"),
        ("show S0Q --mesh 2x2", "got 'Q' at position 2"),
        ("show S2R --mesh 2x2", "2"),
        ("show S0R --mesh 2y2", "a mesh is written 2x4, or data=2,model=4"),
        ("show S0R --mesh x=2,x=2", "the axes of a mesh have different names"),
        ("show S0R --mesh 0x2", "every axis of a mesh has at least one device"),
        ("show S0R --mesh 99999999x99999999", "a mesh has at most 1048576 devices here"),
        ("show S0R --mesh ٢x٢", "a mesh is written 2x4"),
        ("show S0R --mesh 2x2 --shape 4", "4"),
        ("show S0R --mesh 2x2 --shape 4xy", "a shape is written 8x4, or () for a scalar"),
        ("show S0R --mesh 2x2 --devices 1,2", "4 distinct device ids"),
        ("show S0R --mesh 2x2 --devices 1-", "device ids are written 3,1,8-10"),
        ("show S0R --mesh 2x2 --devices 3-0", "a range of device ids rises, as 8-10"),
        ("show S0R --mesh 2x2 --devices 0-99999999", "at most 1048576 devices here"),
        ("show '{replicated}' --from hlo --devices 1", "--devices are those of --mesh"),
        ("show S0R --mesh 2x2 --chunking even", "one of the rules"),
        ("show S0R --mesh 2x2 --shape 4x4 --chunking 3+2", "explicit chunk sizes"),
        ("show S0R --mesh 2x2 --shape 4x4 --chunking ceil,ceil,ceil", "one chunking for each dim"),
        ("show S[99999999]0 --mesh 2 --shape 10", "at most 1048576 pieces here"),
        ("show S0R --mesh 2x2 --itemsize 0", "this is a whole number from 1 on"),
        ("show S0R --mesh 2x2 --itemsize 4 --dtype int8", "not allowed with argument"),
        ("show S0R --mesh 2x2 --dtype float33", "invalid choice: 'float33'"),
        ("show S0R --mesh 2x2 --from numpy", "invalid choice: 'numpy'"),
        ("show S0R --mesh 2x2 --picture out.pdf", "ends in .png or .svg"),
        ("show S0R --mesh 2x2 --picture ''", "ends in .png or .svg; got ''"),
        ("show S0R --mesh 2x2 --picture /nowhere/out.svg", "No such file or directory"),
        ("reshard S0R S0 --mesh 2x2", "reshard keeps the tensor's shape"),
        ("reshard S0R RS0 --mesh 2x2 --collectives gossip", "gossip"),
        ("convert R+Pmax0 --mesh 2 --to hlo", "XLA has partial sums"),
        ("convert S0 --mesh 2 --to jax --style 2", "jax has one style"),
        ("convert S0 --mesh 2 --to hlo --style 9", "a style of hlo is one of ('1', '2', '3')"),
    ],
)
def test_wrong_use_ends_with_one_line(capsys, arguments, message):
    line = refused(capsys, arguments)
    assert line.startswith("python -m shardspec")
    assert ": error: " in line
    assert message in line


def status(arguments):
    """Exit status, and what is on standard error."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        try:
            main(arguments)
        except SystemExit as error:
            return error.code, errors.getvalue()
    return 0, errors.getvalue()


@given(
    command=st.sampled_from([["show"], ["convert", "--to", "alpa"]]),
    source=st.sampled_from(["alpa", "sbp", "hlo", "shardy", "jax", "torch"]),
    text=st.text(max_size=40)
    | st.from_regex(r"S[0-9]{1,2}(R|S1)?(\+P(max)?[01])?", fullmatch=True),
    shape=st.sampled_from([[], ["--shape", "6x4"], ["--shape", "5"]]),
)
def test_any_text_is_shown_or_refused_in_one_line(command, source, text, shape):
    code, errors = status([*command, "--from", source, "--mesh", "2x2", *shape, "--", text])
    assert (code, errors.count("\n")) in [(0, 0), (2, 1)]


def test_a_long_error_is_cut_short(capsys):
    line = refused(capsys, ["show", "S0R", "--mesh", "x" * 100_000])
    assert len(line) < 1_100
    assert line.endswith("...\n")


@pytest.mark.parametrize("command", [[], ["show"], ["reshard"], ["convert"]])
def test_help_has_examples_that_run(capsys, monkeypatch, tmp_path, command):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main([*command, "--help"])
    assert caught.value.code == 0
    lines = capsys.readouterr().out.replace("\\\n", "").splitlines()
    examples = [line for line in lines if line.startswith("  python -m shardspec")]
    assert len(examples) >= 3
    for example in examples:
        assert run(capsys, example.removeprefix("  python -m shardspec")) != ""


def test_ascii_and_terminals_without_box_characters(capsys):
    assert run(capsys, "show S0R --mesh 2x2 --shape 4x4 --ascii").isascii()
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    arguments = ["show", "S0R", "--mesh", "données=2,y=2", "--shape", "4x4"]
    done = subprocess.run(
        [*COMMAND, *arguments], env=environment, capture_output=True, check=True, timeout=300
    )
    assert b"+-----+" in done.stdout
    assert b"donn\\xe9es=2" in done.stdout


def test_runs_as_a_module():
    done = subprocess.run(
        [*COMMAND, "--version"], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout == f"shardspec {__version__}\n"


def test_an_error_is_one_line_and_status_2_for_the_shell():
    done = subprocess.run([*COMMAND, "show", "oops"], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_a_reader_that_leaves_early_is_no_error():
    command = " ".join([*map(shlex.quote, COMMAND), "show S0S1 --mesh 64x64 --json | head -c 10"])
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=300)
    assert done.stdout == '{"shape": '
    assert done.stderr == ""


def test_runs_without_standard_output():
    command = " ".join([*map(shlex.quote, COMMAND), "show S0 --mesh 2 >&-"])
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
