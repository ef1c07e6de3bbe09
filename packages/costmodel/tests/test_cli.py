import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from costmodel import Cluster
from costmodel.cli import _parser, main
from costmodel.profile import Profile
from costmodel.report.plot import figure_of
from costmodel.report.table import table

SMALL = Path(__file__).with_name("small_profile.json")


def test_show_prints_the_table(capsys):
    assert main(["show", str(SMALL)]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == table(Profile.from_json(SMALL.read_text()))
    assert err.startswith("warning: ")
    assert len(err.splitlines()) == 1


def test_the_table_has_every_fit_and_its_quality():
    profile = Profile.from_json(SMALL.read_text())
    lines = table(profile).splitlines()
    for fit in profile.fits.collectives:
        (row,) = (line for line in lines if line.startswith(fit.kinds[0]) and "ring" in line)
        assert f"{fit.r_squared:.3f}" in row
        assert f"{100 * fit.median_error:.1f} %" in row
        assert f"{fit.latency_s.low * 1e6:.3g} to {fit.latency_s.high * 1e6:.3g}" in row
    assert all(any(line.startswith(f"{c.kind}  ") for line in lines) for c in profile.fits.curves)


def test_only_panels_that_show_something_are_drawn():
    profile = Profile.from_json(SMALL.read_text())
    kinds = {point.kind for point in profile.collectives}
    panels = figure_of(profile).axes
    assert [panel.axison for panel in panels] == [i <= len(kinds) for i in range(len(panels))]
    assert len(panels) > len(kinds) + 1


@pytest.mark.parametrize("suffix", ["png", "svg", "PNG", "SVG"])
def test_show_draws_a_picture(tmp_path, capsys, suffix):
    path = tmp_path / f"profile.{suffix}"
    assert main(["show", str(SMALL), "--plot", str(path)]) == 0
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")
    assert capsys.readouterr().out.endswith(f"wrote {path}\n")


def test_a_file_that_is_no_text_is_one_line_and_exit_code_1(tmp_path, capsys):
    path = tmp_path / "profile.json"
    path.write_bytes(b"\x89PNG\r\n\x1a\n\xff")
    assert main(["show", str(path)]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("error: a profile is a JSON object; this is no JSON")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "nowhere.json"], "No such file"),
        (["show", str(Path(__file__))], "this is no JSON"),
        (["show", str(SMALL), "--plot", "profile.jpg"], r"ends in .png or .svg; got 'profile.jpg'"),
    ],
)
def test_what_goes_wrong_is_one_line_and_exit_code_1(capsys, arguments, message):
    assert main(arguments) == 1
    *warnings, error = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert all(line.startswith("warning: ") for line in warnings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "command"),
        (["calibrate"], "--backend"),
        (["calibrate", "--backend", "smoke"], "smoke"),
        (["calibrate", "--backend", "mpi", "--sizes", "4QB"], "as 1.5GiB; got '4QB'"),
        (["calibrate", "--backend", "mpi", "--sizes", "0"], "a size is 1 byte or more; got '0'"),
        (["calibrate", "--backend", "mpi", "--n-processes", "1"], "need 2 or more, and"),
        (
            ["calibrate", "--backend", "mpi", "--n-processes", "99999"],
            "; got '99999'",
        ),
        (["calibrate", "--backend", "mpi", "--n-processes", "9" * 5000], "; got '9999"),
        (["calibrate", "--backend", "mpi", "--sizes", "9" * 5000], "as 1.5GiB; got '999"),
        (["calibrate", "--backend", "mpi", "--time-s", "-3"], "a number of seconds > 0"),
        (["calibrate", "--backend", "mpi", "--deadline-s", "soon"], "a number of seconds > 0"),
    ],
)
def test_wrong_usage_is_exit_code_2(capsys, arguments, message):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_a_reader_who_has_seen_enough_is_no_error():
    command = [sys.executable, "-m", "costmodel", "show", str(SMALL)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        lines = process.stderr.read().decode().splitlines()
    assert process.returncode == 0
    assert [line.partition(":")[0] for line in lines] == ["warning"]


def test_every_option_says_what_it_is_for():
    parser = _parser()
    (commands,) = (a for a in parser._actions if isinstance(a.choices, dict))
    for command in commands.choices.values():
        for action in command._actions:
            assert re.search("[a-z]{3}", (action.help or "").replace("%(default)s", "")), action


@pytest.mark.parametrize(
    ("backend", "kinds"),
    [
        ("mpi", 7),
        ("torch", 7),
        ("jax", 6),  # XLA has no broadcast on the CPU
    ],
)
def test_calibrates_with_each_backend(tmp_path, backend, kinds):
    out = tmp_path / "profile.json"
    sizes = ["256", "64KiB"]
    command = [sys.executable, "-m", "costmodel", "calibrate", "--backend", backend]
    options = ["--n-processes", "2", "--time-s", "0.3", "--out", str(out), "--sizes", *sizes]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, env=dict(os.environ), timeout=300
    )
    assert (done.returncode, done.stdout[:6]) == (0, "wrote "), done.stderr
    assert "done" in done.stderr.splitlines()[-1]

    profile = Profile.load(out)
    assert profile.backend == backend
    assert profile.n_processes == 2
    assert len({point.kind for point in profile.collectives}) == kinds
    assert len(profile.collectives) == kinds * len(sizes)
    for point in (*profile.collectives, *profile.matmuls, *profile.streams):
        assert all(0 < seconds < math.inf for seconds in point.seconds)
    for curve in profile.fits.curves:
        assert all(0 < curve.time(float(size)) < math.inf for size in (256, 4096, 65536))
    assert profile.cluster(1, 2).n_devices == 2
    assert Profile.from_json(profile.to_json()) == profile


@pytest.mark.parametrize("backend", ["torch", "mpi"])
def test_probes_the_machine_with_each_backend(tmp_path, backend):
    out = tmp_path / "cluster.json"
    command = [sys.executable, "-m", "costmodel", "probe", "--backend", backend, "--name", "mine"]
    done = subprocess.run(
        [*command, "--n-processes", "2", "--out", str(out)],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        timeout=300,
    )
    assert (done.returncode, done.stdout[:6]) == (0, "wrote "), done.stderr
    assert "done" in done.stderr.splitlines()[-1]
    cluster = Cluster.from_json(out.read_text())
    assert (cluster.name, cluster.n_hosts, cluster.n_devices) == ("mine", 1, 2)
    assert "by python -m costmodel probe" in cluster.source
    assert {"float32", "float64"} <= {name for name, _ in cluster.device.flops_per_s}


def test_processes_of_another_launcher_are_not_doubled(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PMI_RANK", "0")
    out = str(tmp_path / "cluster.json")
    assert main(["probe", "--backend", "torch", "--out", out]) == 1
    assert "take --backend mpi, or another launcher" in capsys.readouterr().err


def test_a_probe_into_a_folder_that_is_not_there_measures_nothing(tmp_path, capsys):
    out = str(tmp_path / "no" / "cluster.json")
    assert main(["probe", "--backend", "mpi", "--out", out]) == 1
    assert "needs a folder that can be written to" in capsys.readouterr().err


def test_a_failing_rank_is_one_line(tmp_path):
    (tmp_path / "torch.py").write_text("raise RuntimeError('broken\\non purpose')")
    command = [sys.executable, "-m", "costmodel", "calibrate", "--backend", "torch"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "profile.json")],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1
    assert done.stderr == "error: rank failed: RuntimeError: broken\n"
