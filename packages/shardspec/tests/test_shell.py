import io
import sys

import pytest
from shardspec.cli.shell import Parser, can_show, print_text, run_command


def fails_with(error):
    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("too\n  many"), 1, "error: too many\n"),
        (FileNotFoundError("no file"), 1, "error: no file\n"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd"), 1, "error: a plan is text; got 'utf-8"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (ValueError("x" * 2_000), 1, f"error: {'x' * 2_000}\n"),
    ],
    ids=["expected", "os", "not text", "interrupted", "long"],
)
def test_an_expected_error_is_one_line(capsys, error, code, line):
    assert run_command(fails_with(error), ValueError, text="a plan is text") == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(line)
    assert printed.err.count("\n") == 1


def test_another_error_is_raised():
    with pytest.raises(KeyError):
        run_command(fails_with(KeyError("bug")), ValueError, text="a plan is text")


def test_a_command_returns_its_exit_code_or_none():
    assert run_command(lambda: 3, text="") == 3
    assert run_command(lambda: None, text="") == 0


def test_wrong_usage_is_one_line_with_exit_code_2(capsys):
    with pytest.raises(SystemExit) as caught:
        Parser(prog="tool").parse_args(["--magic"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == "tool: error: unrecognized arguments: --magic\n"


def test_wrong_usage_does_not_repeat_all_of_a_long_argument(capsys):
    with pytest.raises(SystemExit):
        Parser(prog="tool").parse_args([f"--{'x' * 2_000}"])
    assert len(capsys.readouterr().err) < 1_050


def test_what_standard_output_cannot_show_is_escaped(monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    assert can_show("+-|")
    assert not can_show("┌")
    print_text("┌ x")
    assert output.buffer.getvalue() == b"\\u250c x\n"
