import subprocess
import sys
from pathlib import Path

import pytest
from pipesched import Costs, draw, eager_1f1b, legend, one_f_one_b, simulate
from pipesched.__main__ import main

SIZES = ["--stages", "4", "--microbatches", "8"]


def test_show_draws_the_schedules_to_one_scale(capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", "1f1b", "eager-1f1b", *SIZES, "--comm", "0.5", "--width", "82"])
    plain, eager = (
        simulate(f(4, 8), Costs(1.0, 2.0, transfer_s=0.5)) for f in (one_f_one_b, eager_1f1b)
    )
    expected = [draw(plain, 82), draw(eager, 82, span_s=plain.makespan_s), legend(plain)]
    assert capsys.readouterr().out == "\n".join(expected) + "\n"


def test_no_overlap_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", "1f1b", *SIZES, "--comm", "0.5", "--no-overlap"])
    timeline = simulate(one_f_one_b(4, 8), Costs(1.0, 2.0, transfer_s=0.5, overlap=False))
    assert f", {timeline.makespan_s:g} s, " in capsys.readouterr().out


def test_plot_is_written(tmp_path: Path) -> None:
    main(["show", "1f1b", *SIZES, "--plot", str(tmp_path / "out.svg")])
    assert (tmp_path / "out.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1f1b", "--stages", "0", "--microbatches", "8"], "at least one stage"),
        (["1f1b", *SIZES, "--comm", "-1"], "finite and not negative"),
        (["1f1b", *SIZES, "--plot", "/nowhere/out.svg"], "No such file"),
        (["1f1b", "gpipe", *SIZES, "--plot", "out.svg"], "--plot draws one schedule; got 2"),
        (["2f2b", *SIZES], "invalid choice: '2f2b'"),
    ],
    ids=["sizes", "time", "file", "two plots", "name"],
)
def test_wrong_use_exits_with_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["show", *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "pipesched", "show", "gpipe", *SIZES]
    printed = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    assert printed.startswith("gpipe: 4 stages, 8 microbatches, 33 s")
