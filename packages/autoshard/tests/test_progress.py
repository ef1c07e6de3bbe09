"""Long solves report their progress on standard error; short ones report nothing."""

import io
import math
import time
from contextlib import redirect_stderr
from pathlib import Path

import pytest
from autoshard import Incumbent
from autoshard.cli.commands import main
from autoshard.solvers import progress
from autoshard.solvers.progress import ProgressLine

INSTANCE = Path(__file__).parent / "instances" / "asplos-2025-iopddl-B.json.gz"


@pytest.fixture
def hasty(monkeypatch):
    """Divide all intervals of the progress line by a hundred."""
    monkeypatch.setattr(progress, "QUIET_S", progress.QUIET_S / 100)
    monkeypatch.setattr(progress, "EVERY_S", progress.EVERY_S / 100)


def wait_for(text, where):
    until = time.monotonic() + 30.0
    while text not in where.getvalue():
        assert time.monotonic() < until, where.getvalue()
        time.sleep(0.01)


def test_nothing_is_shown_of_what_takes_less_than_two_seconds(capsys):
    assert progress.QUIET_S == 2.0
    with ProgressLine("x", shown=True) as told:
        told(Incumbent(0.0, 3.0, 2.0))
        time.sleep(progress.EVERY_S / 4)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("hasty")
def test_incumbent_and_bound_are_shown_of_what_takes_longer():
    with redirect_stderr(io.StringIO()) as errors, ProgressLine("x", shown=True) as told:
        wait_for("x: 0 s, nothing feasible yet, no bound yet\n", errors)
        told(Incumbent(0.1, 200.0, 190.0))
        wait_for(" s, cost 200, bound 190, gap 5 %\n", errors)


@pytest.mark.usefixtures("hasty")
def test_on_a_terminal_one_line_is_drawn_over_and_erased():
    errors = io.StringIO()
    errors.isatty = lambda: True
    with redirect_stderr(errors), ProgressLine("x") as told:
        told(Incumbent(0.0, math.inf, 190.0))
        wait_for(" s, nothing feasible yet, bound 190", errors)
    assert "\n" not in errors.getvalue()
    assert errors.getvalue().startswith("\r\033[Kx: 0 s, ")
    assert errors.getvalue().endswith("\r\033[K")


@pytest.mark.usefixtures("hasty")
def test_where_there_is_no_terminal_nothing_is_shown_unless_asked_for(capsys):
    command = ["solve", str(INSTANCE), "--method", "message_passing", "--time", "0.4"]
    main(command)  # finds nothing in that time, which is an error of one line
    assert "bound" not in capsys.readouterr().err
    main([*command, "--progress"])
    shown = capsys.readouterr().err.splitlines()
    assert shown[0].startswith(f"{INSTANCE.name}, message_passing: 0 s, ")
