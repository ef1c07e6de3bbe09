"""Claims of torch_ranks.py, in which six processes take part; each test reads what they found."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RANKS = Path(__file__).parent / "torch_ranks.py"
CLAIMS = [
    node.name
    for node in ast.parse(RANKS.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and [arg.arg for arg in node.args.args] == ["world"]
]
PATIENCE_S = 240
"""Ten times what it takes with two other processes on two cores; then nobody comes any more."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each rank says of each claim."""
    folder = tmp_path_factory.mktemp("ranks")
    # By itself, as this process may have threads already, with which none may fork.
    run = subprocess.run(
        [sys.executable, str(RANKS), str(folder), *CLAIMS],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    return [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]


def test_there_are_claims():
    assert CLAIMS


@pytest.mark.parametrize("claim", CLAIMS)
def test_on_every_rank(found, claim):
    assert len(found) == 6
    for rank in found:
        assert rank[claim] == "holds", rank[claim]
