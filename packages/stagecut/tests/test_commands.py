import json
import os
import subprocess
import sys

import pytest
from shardspec.amounts import seconds_text
from stagecut import StagePlan
from stagecut.cli.commands import main
from stagecut.models import model_names

DEMO = ["demo", "gpt-350m", "--cluster", "p3.8xlarge", "--layers", "8"]


@pytest.fixture
def file(tmp_path, capsys):
    """A plan as demo writes it."""
    assert main([*DEMO, "--json"]) == 0
    path = tmp_path / "plan.json"
    path.write_text(capsys.readouterr().out)
    return path


def test_demo_prints_what_it_always_did(check_golden, capsys):
    options = ["--microbatches", "256,512", "--alternatives", "--explain", "0", "--draw"]
    assert main([*DEMO, *options]) == 0
    check_golden("demo.txt", capsys.readouterr().out.rstrip("\n"))


def test_help_prints_what_it_always_did(check_golden, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    texts = []
    for command in ([], ["demo"], ["show"], ["ablation"]):
        with pytest.raises(SystemExit) as caught:
            main([*command, "--help"])
        assert caught.value.code == 0
        texts.append(capsys.readouterr().out)
    check_golden("help.txt", "\n".join(texts).rstrip("\n"))


def test_show_prints_the_plan_that_demo_wrote(file, capsys):
    main([*DEMO, "--explain", "1", "--draw"])
    printed = capsys.readouterr().out
    assert main(["show", str(file), "--explain", "1", "--draw"]) == 0
    assert capsys.readouterr().out == printed
    assert main(["show", str(file), "--json"]) == 0
    assert StagePlan.from_json(capsys.readouterr().out) == StagePlan.from_json(file.read_text())


def test_pictures_are_written(file, tmp_path):
    assert main(["show", str(file), "--picture", str(tmp_path / "plan.png")]) == 0
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_the_best_number_of_microbatches_is_taken_and_the_others_kept(capsys):
    times = {}
    for counts in ("64", "512", "64,512"):
        main([*DEMO, "--microbatches", counts, "--json"])
        times[counts] = StagePlan.from_json(capsys.readouterr().out)
    best, other = sorted((times["64"], times["512"]), key=lambda plan: plan.time_s)
    both = times["64,512"]
    assert (both.n_microbatches, both.time_s) == (best.n_microbatches, best.time_s)
    (rival,) = [rival for rival in both.rivals if rival.kind == "microbatches"]
    assert rival.name == f"{other.n_microbatches} microbatches"
    assert rival.reason == seconds_text(other.time_s)


def test_more_processes_find_the_same_plan(capsys):
    plans = []
    for processes in ("1", "2"):
        command = ["demo", "gpt-39b", "--cluster", "p3.16xlarge:8", "--processes", processes]
        assert main([*command, "--json"]) == 0
        plans.append(capsys.readouterr().out)
    assert plans[0] == plans[1]


@pytest.mark.parametrize("name", model_names())
def test_every_model_has_a_plan_or_one_line_that_says_why_not(name, capsys):
    code = main(["demo", name, "--cluster", "p3.16xlarge:4", "--layers", "8"])
    printed = capsys.readouterr()
    assert printed.out.startswith(name) if code == 0 else printed.err.count("\n") == 1
    assert code == 0 or "no slicing fits in 16 GiB" in printed.err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["demo", "gpt-5", "--cluster", "p3.16xlarge"], "a model is one of gpt-350m"),
        (["demo", "gpt-350m", "--cluster", "p4"], "no preset is called 'p4'"),
        (["demo", "gpt-350m", "--cluster", "p3.16xlarge:0"], "is followed by a number of hosts"),
        (
            ["demo", "gpt-350m", "--cluster", "p3.16xlarge:9999"],
            "at most 4,096 devices; got 79,992",
        ),
        ([*DEMO, "--microbatches", "3"], "got n_microbatches=3 for the 1024 samples"),
        (["demo", "gpt-350m", "--cluster", "p3.8xlarge", "--layers", "999"], "999"),
        ([*DEMO, "--memory", "0.5"], "no slicing fits in 512 MiB"),
        ([*DEMO, "--explain", "99"], "stages are counted from 0 to"),
        ([*DEMO, "--picture", "missing/plan.png"], "missing/plan.png"),
        ([*DEMO, "--picture", "plan.gif"], "a picture's file name ends in .png or .svg"),
        (["ablation", "--picture", "plan.gif"], "a picture's file name ends in .png or .svg"),
        ([*DEMO, "--processes", "9999"], "a number of processes from 1 to 1,024"),
        (["show", "missing.json"], "missing.json"),
        (["show", "."], "Is a directory"),
    ],
)
def test_what_goes_wrong_is_one_line_and_exits_with_1(
    command, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(command) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"stagecut": "plan"}', b"[" * 9999])
def test_a_file_that_is_no_plan_is_one_line_and_exits_with_1(content, capsys, tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    assert main(["show", str(path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["plan"],
        ["demo", "gpt-350m"],
        [*DEMO, "--layers", "0"],
        [*DEMO, "--microbatches", "4,"],
        [*DEMO, "--microbatches", "-1"],
        [*DEMO, "--schedule", "magic"],
        [*DEMO, "--memory", "much"],
        [*DEMO, "--memory", "1e999"],
        [*DEMO, "--explain", "-1"],
        [*DEMO, "--processes", "0"],
    ],
)
def test_wrong_usage_is_one_line_and_exits_with_2(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main(command)
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_missing_extra_is_told_before_anything_is_computed(capsys, monkeypatch):
    monkeypatch.setattr("stagecut.plan.picture.find_spec", lambda name: None)
    assert main(["demo", "gpt-39b", "--cluster", "p3.16xlarge:8", "--picture", "plan.svg"]) == 1
    assert "pip install 'meshwright-stagecut[plot]'" in capsys.readouterr().err


def test_a_device_without_float16_computes_in_bfloat16(capsys):
    assert main(["demo", "gpt-2.6b", "--cluster", "tpu-v4:2", "--layers", "4"]) == 0
    assert capsys.readouterr().out.startswith("gpt-2.6b on tpu-v4:2")


def run(*command, **options):
    return subprocess.run(
        [sys.executable, "-m", "stagecut", *command], capture_output=True, **options, timeout=300
    )


def test_a_reader_that_has_seen_enough_hears_no_complaint(file):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "stagecut", "show", str(file)],
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=300,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_no_standard_output_is_no_error(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert main([*DEMO, "--draw"]) == 0


def test_a_terminal_without_blocks_gets_ascii(file):
    done = run("show", str(file), "--draw", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert b"#" in done.stdout


def test_ablation_is_json_too(capsys, monkeypatch):
    from stagecut.cli import ablation, commands

    monkeypatch.setattr(commands, "CASES", ablation.CASES[:1])
    assert main(["ablation", "--json"]) == 0
    printed = capsys.readouterr().out
    assert main(["ablation", "--json", "--processes", "2"]) == 0
    assert capsys.readouterr().out == printed
    (record,) = json.loads(printed)
    assert record["model"] == "gpt-2.6b"
    assert set(record["seconds"]) == set(ablation.VARIANTS)


def test_plans_do_not_depend_on_the_hash_seed():
    command = [sys.executable, "-m", "stagecut", "demo", "wide-resnet-250m", "--json"]
    command += ["--cluster", "p3.16xlarge", "--microbatches", "16,32"]
    first, second = (
        subprocess.run(
            command,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=300,
        ).stdout
        for seed in ("1", "2")
    )
    assert first == second
