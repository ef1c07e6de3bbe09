"""The progress of a search, on a terminal and elsewhere."""

import os
import pty
import subprocess
import sys

import pytest
from stagecut import StageCost, slice_stages

DEMO = ["demo", "gpt-350m", "--cluster", "p3.8xlarge", "--layers", "8"]
RUN = [sys.executable, "-m", "stagecut", *DEMO]


def cost(first, last, submesh):
    return StageCost((last - first + 1) / submesh[1], 0, 0)


def on_a_terminal(*options):
    """What the demo writes to a terminal as its standard error, and to its standard output."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*RUN, *options],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
    ) as run:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # Linux: nobody has the terminal open any more
                break
            if not part:
                break
            shown += part
        os.close(ours)
        printed = run.stdout.read()
    assert run.returncode == 0
    return shown.decode(), printed


def elsewhere(*options):
    run = subprocess.run([*RUN, *options], capture_output=True, check=True, timeout=300)
    return run.stderr.decode(), run.stdout


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_terminal_shows_a_bar_that_is_gone_at_the_end(processes):
    shown, printed = on_a_terminal("--processes", processes)
    assert "stages priced: 69 of 69" in shown
    assert "━" in shown
    assert shown.endswith("\x1b[2K")  # erases the line
    assert printed == elsewhere()[1]


def test_nothing_is_shown_where_nobody_asked_for_it_or_sees_it():
    assert on_a_terminal("--no-progress")[0] == ""
    assert elsewhere("--processes", "2")[0] == ""


def test_a_file_gets_a_line_at_each_tenth_if_asked_for():
    lines = elsewhere("--progress", "--processes", "2")[0].splitlines()
    assert len(lines) == 10
    assert (lines[0], lines[-1]) == ("stages priced: 7 of 69", "stages priced: 69 of 69")


def test_a_search_shows_it_in_python_too(capsys):
    slice_stages(4, (1, 4), 4, cost, progress=True)
    printed = capsys.readouterr()
    assert "stages priced: 17 of 17\n" in printed.err
    assert printed.out == ""
    slice_stages(4, (1, 4), 4, cost, progress=False)
    assert capsys.readouterr().err == ""


def test_a_function_is_told_after_each_price():
    told = []
    n_priced = slice_stages(4, (1, 4), 4, cost, progress=lambda *each: told.append(each)).n_priced
    assert told == [(done + 1, n_priced) for done in range(n_priced)]


def test_an_interrupted_search_leaves_no_bar_behind(monkeypatch, capsys):
    def interrupted(first, last, submesh):
        raise KeyboardInterrupt

    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(KeyboardInterrupt):
        slice_stages(4, (1, 4), 4, interrupted, progress=True)
    assert "\x1b[?25h" in capsys.readouterr().err  # the cursor is back
