"""Runs the claims of torch_ranks.py in six processes; each test reads their results for one claim.

The processes are forked from one that has imported torch, because the import takes longer than
their work. That process is not this one, which may already have threads: a process with threads
must not fork.
"""

import ast
import json
import re
import sys
from pathlib import Path

import launching
import pytest

RANKS = Path(__file__).parent / "torch_ranks.py"
CLAIMS = [
    node.name
    for node in ast.parse(RANKS.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and [arg.arg for arg in node.args.args] == ["world"]
]
PATIENCE_S = 240
"""Ten times what the claims take with two other processes on two cores; then they will not end."""


TORCHRUN = """
import os, runpy, sys
import torch.distributed as dist
import crossmesh.torch

port, told = os.pipe()
for rank in range(6):
    if not os.fork():
        os.environ.update(RANK=str(rank), WORLD_SIZE="6", TORCHELASTIC_USE_AGENT_STORE="True")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.read(port, 5).decode())
        runpy.run_path(sys.argv[1])
        dist.destroy_process_group()
        sys.exit()
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
os.write(told, 6 * f"{store.port:05}".encode())
sys.exit(max(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(6)))
"""
"""What `torchrun --nproc-per-node 6` does."""


def run(*arguments):
    """Run a Python program with one thread in each process, and assert that it succeeds."""
    ended = launching.run([sys.executable, *map(str, arguments)], deadline_s=PATIENCE_S)
    assert ended.status == 0, ended.output


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The results of each rank, by claim."""
    folder = tmp_path_factory.mktemp("ranks")
    run(RANKS, folder, *CLAIMS)
    return [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]


def test_there_are_claims():
    assert CLAIMS


@pytest.mark.parametrize("claim", CLAIMS)
def test_on_every_rank(found, claim):
    assert len(found) == 6
    for rank in found:
        assert rank[claim] == "holds", rank[claim]


def test_the_program_in_the_readme_serves_the_weights(tmp_path):
    readme = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (program,) = [text for text in programs if "torchrun --nproc-per-node 6" in text]
    assert "    assert torch.equal(" in program
    path = tmp_path / "sync.py"
    path.write_text(program, encoding="utf-8")
    run("-c", TORCHRUN, path)
