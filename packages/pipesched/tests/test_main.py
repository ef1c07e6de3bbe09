import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pipesched import (
    NAMES,
    Costs,
    Schedule,
    compare,
    delay_weight_gradients,
    draw,
    eager_1f1b,
    from_torch_csv,
    interleaved_1f1b,
    legend,
    make,
    one_f_one_b,
    search,
    simulate,
    to_torch_csv,
    with_communication,
)
from pipesched.cli import main

SIZES = ["--stages", "4", "--microbatches", "8"]
COSTS = Costs(1.0, 2.0, transfer_s=0.5)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(arguments) == 0
    return capsys.readouterr().out.splitlines()


def test_show_draws_the_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    timeline = simulate(eager_1f1b(4, 8), COSTS)
    expected = f"{draw(timeline, 82)}\n{legend(timeline)}"
    lines = printed(capsys, "show", "eager-1f1b", *SIZES, "--comm", "0.5", "--width", "82")
    assert "\n".join(lines) == expected


def test_compare_has_a_table_and_drawings_to_one_scale(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "compare", "1f1b", "eager-1f1b", *SIZES, "--comm", "0.5")
    plain, eager = (simulate(f(4, 8), COSTS) for f in (one_f_one_b, eager_1f1b))
    assert lines[:3] == compare(plain, eager).splitlines()
    text = "\n".join(lines)
    assert draw(plain) in text
    assert draw(eager, span_s=plain.makespan_s) in text


@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_can_be_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "show", name, "--ranks", "4", "--microbatches", "8")
    assert sum(line.startswith("rank ") for line in lines) == 4


def test_the_model_of_ranks_is_cut_into_more_and_smaller_stages(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--ranks", "2", "--microbatches", "4", "--chunks", "3", "--forward", "3"]
    lines = printed(capsys, "compare", "interleaved-1f1b", *arguments, "--backward", "6")
    costs = Costs(1.0, 2.0, activation_bytes=1 / 3)
    expected = compare(simulate(interleaved_1f1b(6, 4, n_chunks=3), costs))
    assert lines[:2] == expected.splitlines()


def test_times_are_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--input-gradient", "3", "--weight-gradient", "2", "--latency", "0.5"]
    lines = printed(capsys, "show", "zb-h1", *SIZES, *arguments)
    costs = Costs(1.0, input_gradient_s=3.0, weight_gradient_s=2.0, latency_s=0.5)
    assert lines[0] == draw(simulate(make("zb-h1", 4, 8), costs)).splitlines()[0]


def test_no_overlap_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "show", "1f1b", *SIZES, "--comm", "0.5", "--no-overlap")
    timeline = simulate(one_f_one_b(4, 8), Costs(1.0, 2.0, transfer_s=0.5, overlap=False))
    assert f", {timeline.makespan_s:g} s, " in lines[0]


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
def test_search_is_a_schedule(split: bool, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--split"] if split else []
    lines = printed(capsys, "compare", "search", *SIZES, "--comm", "0.5", "--cap", "4", *flags)
    found = search(4, 8, COSTS, activation_cap=4, split_backward=split)
    assert f"{found.makespan_s:.4g} s" in lines[1]
    (note,) = (line for line in lines if line.startswith("search: no schedule"))
    assert f"less than {found.lower_bound_s:.4g} s (gap {found.gap:.1%})" in note


def test_zb_auto_keeps_within_the_cap(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "compare", "zb-auto", *SIZES, "--cap", "3")
    assert float(lines[1].split()[-1]) <= 3


def test_weight_gradients_are_put_off(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "compare", "eager-1f1b+delay", *SIZES, "--comm", "0.5")
    timeline = simulate(delay_weight_gradients(eager_1f1b(4, 8), COSTS), COSTS)
    assert lines[1].split()[:3] == ["eager-1f1b+delay", "4", f"{timeline.makespan_s:g}"]


def test_files_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {flag: tmp_path / f"out{flag}.svg" for flag in ("--plot", "--memory")}
    files["--trace"] = tmp_path / "trace.json"
    flags = [word for flag, path in files.items() for word in (flag, str(path))]
    printed(capsys, "compare", "1f1b", "zb-h1", *SIZES, *flags, "--cap", "4")
    assert all("<svg" in files[flag].read_text() for flag in ("--plot", "--memory"))
    assert "zb-h1" in files["--plot"].read_text()
    assert "cap" in files["--memory"].read_text()
    assert json.loads(files["--trace"].read_text())["traceEvents"]


@pytest.mark.parametrize("suffix", [".json", ".csv", ".txt"])
def test_a_saved_schedule_is_checked_and_shown(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"zb{suffix}"
    first = printed(capsys, "show", "zb-h1", *SIZES, "--save", str(path))
    schedule = make("zb-h1", 4, 8)
    read = {".json": Schedule.from_json, ".csv": from_torch_csv}.get(suffix, Schedule.parse)
    assert read(path.read_text()).ranks == schedule.ranks
    assert "right: 4 stages on 4 ranks" in printed(capsys, "check", str(path))[0]
    assert printed(capsys, "show", str(path))[1:] == first[1:]


def test_a_wrong_schedule_is_refused_with_the_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text(str(one_f_one_b(2, 3)).replace("F0.1 ", ""))
    assert main(["check", str(path)]) == 1
    assert "check: completeness: " in capsys.readouterr().err


def test_semantics_are_passed_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "schedule.csv"
    path.write_text(to_torch_csv(with_communication(one_f_one_b(2, 3))))
    (line,) = printed(capsys, "check", str(path), "--semantics", "rendezvous")
    assert line.endswith("with rendezvous transfers")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1f1b", "--stages", "0", "--microbatches", "8"], "at least one stage"),
        (["1f1b", "--microbatches", "8"], "needs --microbatches, and either --stages or --ranks"),
        (["1f1b", *SIZES, "--ranks", "4"], "needs --microbatches, and either --stages or --ranks"),
        (["1f1b", *SIZES, "--comm", "-1"], "finite and not negative"),
        (["1f1b", *SIZES, "--width", "0"], "at least one column"),
        (["looped-bfs", *SIZES, "--chunks", "0"], "a rank has at least one stage"),
        (["search", *SIZES, "--cap", "0.5"], "memory for one microbatch"),
        (["1f1b", *SIZES, "--plot", "/nowhere/out.svg"], "No such file"),
        (["1f1b", *SIZES, "--plot", "out.txt"], "ends in .png or .svg"),
        (["dualpipe", *SIZES, "--save", "out.csv"], "has each stage on one rank"),
        (["2f2b", *SIZES], "a schedule is one of gpipe, .* or a file; got 2f2b"),
    ],
)
def test_what_goes_wrong_is_one_sentence(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["show", *arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("python -m pipesched show: ")
    assert re.search(message, line)


def test_a_file_that_is_no_text_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(b"\x89PNG\xff")
    assert main(["check", str(path)]) == 1
    assert "the file of a schedule is UTF-8 text; got " in capsys.readouterr().err


def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["show"])
    assert caught.value.code == 2
    assert "the following arguments are required: schedule" in capsys.readouterr().err


def test_help_names_every_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert [name for name in (*NAMES, "search", "+delay") if name not in text] == []


def test_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "pipesched", "show", "gpipe", *SIZES]
    done = subprocess.run(command, check=True, capture_output=True, encoding="utf-8", timeout=300)
    assert done.stdout.startswith("gpipe: 4 stages, 8 microbatches, 33 s")


def test_a_csv_with_a_byte_order_mark_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("0F0,0B0\n", encoding="utf-8-sig")
    assert printed(capsys, "check", str(path))[0].startswith("a is right")


SHOW = [sys.executable, "-m", "pipesched", "show", "gpipe", "--stages", "64", "--microbatches", "8"]


def test_a_terminal_without_shades_gets_question_marks() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(SHOW, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0
    assert done.stdout.endswith(
        "?? forward, ?? backward; a cell starts with its microbatch's number\n"
    )
    assert done.stderr == ""


def test_a_reader_may_close_the_output_early() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(SHOW, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=300)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
def test_output_that_cannot_be_written_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(SHOW, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 1
    assert re.fullmatch(r"python -m pipesched show: .*No space left on device\n", done.stderr)


def test_nothing_that_takes_time_is_said_in_the_legend(capsys: pytest.CaptureFixture[str]) -> None:
    *_, last = printed(capsys, "show", "1f1b", *SIZES, "--forward", "0", "--backward", "0")
    assert last.startswith("nothing takes time; ")
