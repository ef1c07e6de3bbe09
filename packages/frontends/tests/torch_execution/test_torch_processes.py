"""Four real processes: torch_processes.py is what they do, here is what comes of it."""

import json
import os
import sys
import sysconfig
from pathlib import Path

import frontends.torch as mw
import pytest
from launching import run

N = 4
PROGRAM = str(Path(__file__).with_name("torch_processes.py"))
LAUNCHERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone"],
    "mpiexec": [str(Path(sysconfig.get_path("scripts"), "mpiexec")), "-n", str(N), sys.executable],
}
LAUNCHERS["torchrun"] += ["--nproc-per-node", str(N)]
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
STRATEGIES = ["zero", "megatron", "equal_layers"] if NIGHTLY else ["equal_layers"]


@pytest.mark.parametrize("launcher", LAUNCHERS if NIGHTLY else ["torchrun"])
def test_processes_compute_the_eager_step_and_communicate_as_planned(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = run([*LAUNCHERS[launcher], PROGRAM, str(tmp_path), *STRATEGIES], deadline_s=400)
    assert ended.status == 0, ended.output
    found = [json.loads(Path(tmp_path, f"{rank}.json").read_text()) for rank in range(N)]
    for name in STRATEGIES:
        runs = [results[name] for results in found]
        assert max(run["state"] for run in runs) < 1e-5
        assert len({tuple(run["losses"]) for run in runs}) == 1, "whole everywhere"
        assert runs[0]["collectives"] > 0 or name == "equal_layers"
    assert found[0]["equal_layers"]["stages"] > 1
    assert "S10R (_StridedShard(dim=0, sf=2), Shard(dim=0))" in found[0]["dtensors"]
    assert all(0 < results["initial"] < 4 * 7 for results in found), "of each stage its own"
    monkeypatch.syspath_prepend(str(Path(PROGRAM).parent))
    from torch_processes import parallelized

    step, tokens = parallelized("zero", 1)
    step.compile(tokens)
    mw.restore(tmp_path / "equal_layers", step)  # from four processes into one, by another plan
    assert float(step(tokens)) == pytest.approx(found[0]["equal_layers"]["losses"][1], rel=1e-5)
    assert all(results["steps"] == found[0]["steps"] > 50 for results in found)
    assert all(results["variants"] == 3 for results in found)
    assert all(set(results["evaluated"][:2]) == {"held"} for results in found)
    assert all(results["counted"] == 2 for results in found)
    assert all(results["moved"] == 4 for results in found)
    assert all(results["compared"] < 1e-5 for results in found)
    assert all(results["parts"] < 1e-5 for results in found)
    assert all("collective_permute" in results["ring"] for results in found)
