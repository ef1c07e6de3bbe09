"""The program of docs/pytorch.md does what the page says: in one process, in four, on two hosts."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import netlab
import pytest
from launching import run
from torch_hosts.launch import Ran, lab, launch
from torch_hosts.report import BEGIN, END, program_of, record, rewrite

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "pytorch.md").read_text()
PROGRAM, *MORE = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
SCRIPTS = Path(sys.executable).parent
LAUNCHERS = {
    "alone": [sys.executable],
    "torchrun": [SCRIPTS / "torchrun", "--standalone", "--nproc-per-node", "4"],
    "mpiexec": [SCRIPTS / "mpiexec", "-n", "4", sys.executable],
}


@pytest.mark.parametrize(
    "rest", [(), pytest.param(MORE, marks=pytest.mark.nightly)], ids=["first", "all"]
)
@pytest.mark.parametrize(
    "launcher",
    ["alone", *(pytest.param(n, marks=pytest.mark.nightly) for n in ("torchrun", "mpiexec"))],
)
def test_the_example_trains_and_verifies_itself(
    launcher: str, rest: Sequence[str], tmp_path: Path
) -> None:
    path = tmp_path / "train_llama.py"
    path.write_text("".join((PROGRAM, *rest)))
    ended = run([*LAUNCHERS[launcher], path], deadline_s=900, cwd=tmp_path)
    assert ended.status == 0, ended.output
    (shown,) = re.findall(r"^It prints\n\n```\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
    for line in shown.splitlines():
        steady = re.sub(r"\d[\d.e-]*e-\d+", "X", line)
        printed = re.sub(r"\d[\d.e-]*e-\d+", "X", ended.output)
        assert steady in printed or line.startswith("ok: collectives"), line


def test_the_example_is_that_of_the_readme() -> None:
    readme = (ROOT / "packages" / "frontends" / "README.md").read_text()
    assert f"```python\n{program_of(PAGE)}```" in readme


@pytest.mark.nightly
@pytest.mark.skipif(bool(netlab.supported()), reason=f"no lab: {netlab.supported()}")
def test_the_example_trains_on_two_hosts(tmp_path: Path) -> None:
    path = tmp_path / "train_llama.py"
    path.write_text(PROGRAM)
    with lab(f"th{os.getpid()}") as hosts:
        ran = launch(hosts, path)
    shown = PAGE.partition(BEGIN)[2].partition(END)[0]
    losses = re.findall(r"^loss .*$", shown, flags=re.MULTILINE)
    assert len(losses) == 3
    assert re.findall(r"^loss .*$", ran.printed, flags=re.MULTILINE) == losses
    assert "ok: 2 steps return what eager ones do" in ran.printed
    assert ran.crossed_bytes > 1e6


def test_the_page_shows_what_was_printed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"Before.\n{BEGIN}\nold\n{END}\nAfter.\n")
    rewrite(page, record({"date": "2026-01-01", "versions": "torch 2"}, Ran("", "hello\n", 10**7)))
    text = page.read_text()
    assert (text.startswith("Before.\n"), text.endswith("\nAfter.\n")) == (True, True)
    assert "```\nhello\n```" in text
    assert "10.0 MB" in text
    assert "old" not in text
