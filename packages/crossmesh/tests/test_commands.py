import json
import os
import subprocess
import sys

import pytest
from crossmesh import TransferPlan
from crossmesh.cli.commands import main
from hypothesis import given, settings
from hypothesis import strategies as st

TWO_HOSTS = [
    "--src",
    "S0R on 2x2",
    "--dst",
    "RS0 on 1x2",
    "--shape",
    "64x64",
    "--dtype",
    "bfloat16",
]


def exit_code(arguments):
    try:
        return main(arguments)
    except SystemExit as exit:
        return exit.code


@pytest.fixture
def run(capsys):
    """Run a command; its exit code, output and errors."""

    def run(*arguments):
        code = exit_code(arguments)
        return code, *capsys.readouterr()

    return run


def test_plan_says_who_sends_what_to_whom(run):
    code, out, err = run("plan", *TWO_HOSTS)
    assert (code, err) == (0, "")
    assert "1 t, no plan takes less" in out
    assert "1 (2) -> 2 (4-5)" in out


def test_plan_as_json_is_read_and_shown_as_it_was(run, tmp_path):
    _, text, _ = run("plan", *TWO_HOSTS, "--json")
    made = TransferPlan.from_json(text)
    assert made.host_of == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}
    (tmp_path / "plan.json").write_text(text, encoding="utf-8")
    assert run("show", str(tmp_path / "plan.json"))[1] == run("plan", *TWO_HOSTS)[1]


def test_rates_give_times_in_seconds(run):
    _, out, _ = run("plan", *TWO_HOSTS, "--gbit", "1", "--device-gbyte", "5", "--latency-us", "20")
    assert " above the lower bound of 65.5 us\n" in out


def test_strategy_order_and_split_are_the_plans(run):
    options = ["--strategy", "send_recv", "--order", "naive", "--no-split"]
    _, text, _ = run("plan", *TWO_HOSTS, *options, "--json")
    made = TransferPlan.from_json(text)
    assert (made.strategy, made.order) == ("send_recv", "naive")


def test_devices_and_hosts_may_be_given(run):
    _, text, _ = run(
        "plan", "--src", "R+P0 on 4", "--dst", "S0 on 4 at 0-3", "--shape", "1024", "--dtype",
        "float32", "--devices-per-host", "2", "--json",
    )  # fmt: skip
    assert TransferPlan.from_json(text).host_of == {0: 0, 1: 0, 2: 1, 3: 1}


def test_compare_has_a_row_for_each_way(run):
    _, out, _ = run("compare", *TWO_HOSTS)
    rows = json.loads(run("compare", *TWO_HOSTS, "--json")[1])
    assert len(out.splitlines()) == 3 + len(rows)
    assert {row["unit"] for row in rows} == {"t"}
    assert {row["lower_bound"] for row in rows} == {1.0}


def test_cases_are_nine(run):
    _, out, _ = run("cases")
    rows = json.loads(run("cases", "--json")[1])
    assert [row["case"] for row in rows] == [*range(1, 10)]
    assert len(out.splitlines()) == 10


def test_a_picture_is_drawn_beside_the_text(run, tmp_path):
    code, out, _ = run("plan", *TWO_HOSTS, "--picture", str(tmp_path / "plan.svg"))
    assert (code, "no plan takes less" in out) == (0, True)
    assert (tmp_path / "plan.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (["--src", "S0R"], 2, "a layout is written 'S0R on 2x2'"),
        (["--src", "Q on 2"], 2, "a spec is a letter for each dim"),
        (["--src", "S0R on 9999999x99"], 2, "at most 4,096 devices; got 9999999x99; call"),
        (["--src", "S0R on 2x2 at x"], 2, "device ids are written 3,1,8-10; got 'x'"),
        (["--src", "S0R on 2x2 at 3-0"], 2, "a range of device ids rises"),
        (["--src", "S0R on 2x2 at 0-999999999"], 2, "at most 1048576 devices here"),
        (["--src", "S0R on 2x2 at 0-2"], 1, "got"),
        (["--src", "S5R on 2x2"], 1, "got"),
        (["--src", "S0R on 0x2"], 1, "got"),
        (["--shape", "4y4"], 2, "a shape is written 8x4"),
        (["--shape", "4x4x4"], 1, "got"),
        (["--dtype", "float33"], 1, "float33"),
        (["--devices-per-host", "0"], 2, "a whole number from 1 on; got '0'"),
        (["--dst", "RS0 on 1x2 at 3-4"], 1, "pass --devices-per-host N"),
        (["--gbit", "-1"], 2, "a positive number, such as 0.2; got '-1'"),
        (["--gbit", "nan"], 2, "a positive number, such as 0.2; got 'nan'"),
        (["--gbit", "1e300"], 1, "got"),
        (["--latency-us", "3"], 1, "need --gbit"),
        (["--strategy", "fast"], 2, "invalid choice: 'fast'"),
        (["--picture", "plan.txt"], 1, "ends in .png or .svg; got 'plan.txt'"),
        (["--picture", "/nowhere/plan.svg"], 1, "No such file or directory"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(run, change, code, message):
    got, out, err = run("plan", *TWO_HOSTS, *change)
    assert (got, out, err.count("\n")) == (code, "", 1)
    assert message in err


@pytest.mark.parametrize("content", [b"", b"{}", b"\x89PNG", b"[" * 100_000, b'{"version": 1e999}'])
def test_a_file_that_is_no_plan_is_said_in_one_line(run, tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    code, out, err = run("show", str(path))
    assert (code, out, err.count("\n")) == (1, "", 1)


def test_a_file_that_is_not_there_is_said_in_one_line(run, tmp_path):
    code, _, err = run("show", str(tmp_path / "none.json"))
    assert (code, err.count("\n")) == (1, 1)
    assert "No such file" in err


WORDS = st.text(st.sampled_from("SR01+P()x, on at-9e.[]:ⅷ²\0é"), max_size=12)


@settings(max_examples=200)
@given(WORDS, WORDS, WORDS, WORDS)
def test_no_text_ends_in_a_traceback(src, dst, shape, dtype):
    arguments = [f"--src={src} on 2x2", f"--dst={dst}", f"--shape={shape}", f"--dtype={dtype}"]
    assert exit_code(["plan", *arguments]) in (0, 1, 2)


@pytest.mark.parametrize("command", [[], ["plan"], ["show"], ["compare"], ["cases"]])
def test_help_is_printed(run, command):
    code, out, err = run(*command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith("usage: python -m crossmesh")


def test_a_reader_that_has_seen_enough_hears_nothing_more():
    command = f"{sys.executable} -m crossmesh cases --json | head -c 5"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        capture_output=True,
        timeout=60,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert (done.stdout, done.stderr) == (b'[{"ca', b"")
