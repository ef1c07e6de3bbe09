"""The program of docs/pytorch.md does what the page says, in one process and in four."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "pytorch.md").read_text()
PROGRAM, *MORE = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
LAUNCHERS = {
    "alone": [],
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"],
}


@pytest.mark.parametrize("launcher", ["alone", pytest.param("torchrun", marks=pytest.mark.nightly)])
def test_the_example_trains_and_verifies_itself(launcher: str, tmp_path: Path) -> None:
    path = tmp_path / "train_llama.py"
    path.write_text("".join((PROGRAM, *MORE)))
    done = subprocess.run(
        [sys.executable, *LAUNCHERS[launcher], str(path)],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    (shown,) = re.findall(r"^It prints\n\n```\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
    for line in shown.splitlines():
        steady = re.sub(r"\d[\d.e-]*e-\d+", "X", line)
        printed = re.sub(r"\d[\d.e-]*e-\d+", "X", done.stdout)
        assert steady in printed or line.startswith("ok: collectives"), line
