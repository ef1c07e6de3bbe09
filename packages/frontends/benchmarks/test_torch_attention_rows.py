"""What does it cost to split causal attention by rows instead of by heads?

Two processes share a sequence of 8,192 tokens; two layers of eight heads of width 32, SGD.
Baseline: "heads", where each process has four heads and nothing is sent in attention. "rows": each
has half of the rows and all keys, and half of its heads for the other's rows, so that both have as
much work. "ring": each has half of the keys at a time. "rows, not balanced": seven heads, which
have no halves, so the second process has three quarters of the work; its seconds are for eight.
Ways take turns.

Not shown: GPUs, and what a prediction says of CPUs, whose attention is slower than its FLOP.
"""

import json
import sys
from pathlib import Path

import pytest
from launching import run

PROGRAM = str(Path(__file__).with_name("torch_attention_rows.py"))
DEADLINE_S = 900.0


@pytest.mark.nightly
def test_ways(benchmark, tmp_path):
    sizes = ("64", "8", "1") if benchmark.disabled else ("8192", "32", "7")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", PROGRAM, str(tmp_path / "found.json"), *sizes]
    ended = benchmark.pedantic(run, (command,), {"deadline_s": DEADLINE_S}, rounds=1)
    assert ended.status == 0, ended.output
    found = json.loads((tmp_path / "found.json").read_text())
    for way in ("rows", "ring"):
        assert found["losses"][way] == pytest.approx(found["losses"]["heads"], rel=1e-5)
    for of in (found["seconds"], found["predicted"]):
        of["rows, not balanced"] *= 8 / 7
    for way, seconds in found["seconds"].items():
        ratios = [of[way] / of["heads"] for of in (found["seconds"], found["predicted"])]
        benchmark.extra_info[way] = f"{seconds:.2f} s, {ratios[0]:.2f} (predicted {ratios[1]:.2f})"
