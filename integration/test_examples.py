"""The examples run, and their assertions hold; `nox -s examples` runs all, a day two of them."""

import subprocess
import sys
from pathlib import Path

import pytest
from launching import run

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))
BY_DAY = ("own_cluster.py", "evaluation_jax.py")
IN_PROCESSES = "several_processes.py"


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, marks=() if script in BY_DAY else pytest.mark.nightly)
        for script in SCRIPTS
        if script != IN_PROCESSES
    ],
)
def test_an_example_runs(script: str, tmp_path: Path) -> None:
    ended = run([sys.executable, EXAMPLES / script], deadline_s=900, cwd=tmp_path)
    assert ended.status == 0, ended.output


@pytest.mark.nightly
def test_a_run_of_several_processes_continues_where_it_ended(tmp_path: Path) -> None:
    launcher = Path(sys.executable).parent / "mpiexec"
    command = [launcher, "-n", "4", sys.executable, EXAMPLES / IN_PROCESSES, tmp_path / "kept"]
    whole = run(command, deadline_s=900, cwd=tmp_path)
    assert whole.status == 0, whole.output
    assert "step 8: loss" in whole.output
    (tmp_path / "kept" / "8").rename(tmp_path / "lost")  # as if the run had ended before
    again = run(command, deadline_s=900, cwd=tmp_path)
    assert again.status == 0, again.output
    assert "step 4: loss" not in again.output
    line = next(line for line in whole.output.splitlines() if "step 8: loss" in line)
    assert line in again.output


def test_the_file_for_slurm_is_a_shell_script_that_starts_an_example() -> None:
    path = EXAMPLES / "slurm.sh"
    subprocess.run(["sh", "-n", path], check=True, timeout=60)
    assert f"python {IN_PROCESSES}" in path.read_text()


def test_the_gallery_has_every_example() -> None:
    gallery = (EXAMPLES.parent / "docs" / "examples.md").read_text()
    files = [*SCRIPTS, "slurm.sh", "own_cluster.json"]
    assert [name for name in files if f"`{name}`" not in gallery] == []
