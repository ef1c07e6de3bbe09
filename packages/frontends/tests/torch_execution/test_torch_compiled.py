"""Steps whose regions Inductor compiles train as eager ones, and say which of them it refuses."""

import copy
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import frontends.torch as mw
import pytest
import torch
from costmodel import Cluster
from frontends import BatchError, PlanError, StepError
from frontends.torch.run import compiled
from launching import run
from torch import nn

sys.path.append(str(Path(__file__).parent))  # the program of the processes is there

from torch_compiled import batches, loss_of, made

PROGRAM = str(Path(__file__).with_name("torch_compiled.py"))
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
CLUSTER = Cluster.preset("virtual-cpu")
PLANS: dict[str, dict[str, Any]] = {
    "one device": {"cluster": CLUSTER.resized(devices_per_host=1), "microbatches": 1},
    "split weights": {"cluster": CLUSTER.resized(devices_per_host=4), "strategy": "megatron"},
    "stages": {
        "cluster": CLUSTER.resized(devices_per_host=2),
        "stages": 2,
        "microbatches": 2,
    },
}


def trained_eagerly(n_layers: int, n_steps: int) -> tuple[list[float], nn.Module]:
    model, optimizer = made(n_layers)
    losses = []
    torch.manual_seed(2)
    for tokens in batches(n_steps):
        optimizer.zero_grad()
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, model


def regions(step: mw.ParallelStep) -> Sequence[compiled.RegionRunner]:
    found = step.variants[0].runtime.engine.runners
    assert found
    return found


@pytest.mark.parametrize("plan", PLANS)
def test_compiled_regions_train_as_the_eager_step(plan: str) -> None:
    n_steps = 3
    losses, expected = trained_eagerly(3, n_steps)
    model, optimizer = made(3)
    step = mw.parallelize(model, optimizer, loss_of, backend="inductor", **PLANS[plan])
    torch.manual_seed(2)
    found = [float(step(tokens)) for tokens in batches(n_steps)]
    assert found == pytest.approx(losses, rel=1e-5)
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-4, atol=1e-6)
    assert all(runner.is_compiled for runner in regions(step))
    step.verify(batches(1)[0])


def test_a_function_is_compiled_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """And for later steps, too: how many there are does not grow with layers or steps."""
    asked: list[int] = []

    def count(function: Any, forms: Any) -> Any:
        asked.append(len(forms))
        return lambda *operands: function(operands)

    monkeypatch.setattr(compiled, "compiled", count)
    monkeypatch.setattr(compiled, "_functions", {})
    n_asked = []
    for n_layers in (8, 16, 16):
        model, optimizer = made(n_layers)
        step = mw.parallelize(model, optimizer, loss_of, backend="inductor", **PLANS["one device"])
        for tokens in batches(4):
            step(tokens)
        n_asked.append(len(asked))
        assert len(regions(step)) >= 3 * n_layers, "forward, backward and the optimizer"
    assert n_asked[0] == n_asked[1] == n_asked[2] > 0


def test_writes_between_steps_are_seen_and_functions_follow() -> None:
    model, optimizer = made(2)
    step = mw.parallelize(model, optimizer, loss_of, backend="inductor", **PLANS["one device"])
    first, *others = batches(4)
    start = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    model.eval()
    loss = float(step(first))
    for tokens in others:
        step(tokens)
    assert float(step.evaluate(loss_of, first)) == pytest.approx(
        float(loss_of(model, first).detach())
    )
    model.load_state_dict(start[0])
    optimizer.load_state_dict(start[1])
    assert float(step(first)) == pytest.approx(loss, rel=1e-6)


def test_what_inductor_refuses_runs_call_by_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(function: Any, forms: Any) -> Any:
        raise RuntimeError("no such kernel\nand more")

    monkeypatch.setattr(compiled, "compiled", refuse)
    monkeypatch.setattr(compiled, "_functions", {})
    losses, _ = trained_eagerly(2, 4)
    model, optimizer = made(2)
    step = mw.parallelize(model, optimizer, loss_of, backend="inductor", **PLANS["one device"])
    torch.manual_seed(2)
    assert [float(step(tokens)) for tokens in batches(4)] == pytest.approx(losses, rel=1e-5)
    said = capsys.readouterr().err
    assert len(re.findall("^meshwright", said, re.M)) == 1
    assert re.search(
        r"^meshwright: (\d+) of \1 compiled regions run call by call, such as <RegionRunner: \d+ "
        r"calls from \S+ to \S+>, as Inductor refuses them: RuntimeError: no such kernel$",
        said,
        re.M,
    )


def test_each_result_of_a_compiled_function_is_in_memory_of_its_own() -> None:
    """Also if two are equal, or equal to an operand: the program may overwrite one of them."""
    x = torch.randn(2, 2)
    form = (2, 2), (2, 1), x.dtype, x.device

    def calls(operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        (x,) = operands
        once, twice = torch.sigmoid(x), torch.sigmoid(x)
        return [x.contiguous(), once, twice, once, torch.zeros_like(x), torch.zeros_like(x), x * 1]

    function = compiled.compiled(calls, [form])
    for _ in range(2):
        found = function(x)
        torch.testing.assert_close(list(found), calls([x]))
        assert len({tensor.data_ptr() for tensor in (x, *found)}) == 8


def test_an_operator_that_fails_in_a_region_is_named() -> None:
    model, optimizer = made(2)
    step = mw.parallelize(model, optimizer, loss_of, backend="inductor", **PLANS["one device"])
    tokens = batches(1)[0]
    for _ in range(3):
        step(tokens)
    before = copy.deepcopy(model.state_dict())
    tokens[3, 2] = 99
    with pytest.raises(StepError, match=r"embedding.*torch_compiled.py.*self.table\(tokens\)"):
        step(tokens)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_another_backend_is_refused() -> None:
    model, optimizer = made(1)
    with pytest.raises(PlanError, match="backend is one of eager, inductor; got 'cudagraphs'"):
        mw.parallelize(model, optimizer, loss_of, backend="cudagraphs")  # type: ignore[arg-type]


def test_processes_compile_their_stages(tmp_path: Path) -> None:
    n = 4 if NIGHTLY else 2
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(n), PROGRAM, str(tmp_path)]
    ended = run(command, deadline_s=500)
    assert ended.status == 0, ended.output
    losses, _ = trained_eagerly(3, 5)
    for rank in range(n):
        found = json.loads(Path(tmp_path, f"{rank}.json").read_text())
        for plan in ("zero", "equal_layers"):
            assert found[plan]["losses"] == pytest.approx(losses, rel=1e-5)
            assert found[plan]["compiled"] > 0


class Picking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.outer(torch.tanh(self.inner(x))))
        picked = torch.relu(y.index_select(0, index))
        return torch.sigmoid(torch.ones_like(y).index_add(0, index, picked))


def test_what_is_refused_call_by_call_is_refused_compiled() -> None:
    """Inductor takes a negative index for one from the end where eager operators refuse it."""
    torch.manual_seed(0)
    model = Picking()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = mw.parallelize(
        model,
        optimizer,
        lambda model, batch: model(*batch).square().mean(),
        batch_axes=(0, None),
        backend="inductor",
        **PLANS["one device"],
    )
    x, index = torch.randn(8, 4), torch.tensor([2, 5, 1])
    for _ in range(3):
        step((x, index))
    assert all(runner.is_compiled for runner in regions(step))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(StepError, match="index"):
        step((x, torch.tensor([2, -1, 1])))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_steps_may_be_called_where_new_tensors_are_elsewhere_by_default() -> None:
    losses, _ = trained_eagerly(2, 5)
    model, optimizer = made(2)
    step = mw.parallelize(model, optimizer, loss_of, backend="inductor", **PLANS["one device"])
    torch.manual_seed(2)
    first, *others = batches(5)
    found = [float(step(first))]
    for device in ("cpu", "meta"):
        with torch.device(device):
            found += [float(step(tokens)) for tokens in (others.pop(0), others.pop(0))]
    assert found == pytest.approx(losses, rel=1e-5)
    with pytest.raises(BatchError, match="got batch on the device meta: make it there, or move it"):
        step(first.to("meta"))


def test_another_setting_of_torch_is_compiled_anew() -> None:
    """Inductor adds with atomic operations unless algorithms have to be deterministic."""
    model, optimizer = made(2)
    model.eval()
    step = mw.parallelize(model, optimizer, loss_of, backend="inductor", **PLANS["one device"])
    tokens = batches(1)[0]
    step(tokens)
    before = set(compiled._functions)
    torch.use_deterministic_algorithms(True)
    try:
        step(tokens)
    finally:
        torch.use_deterministic_algorithms(False)
    first, second = step.variants
    assert second.runtime is not first.runtime
    assert set(compiled._functions) - before, "what was compiled before is of the other setting"


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_threads_capture_and_compile_one_after_the_other(backend: Any) -> None:
    def training(n_layers: int) -> Callable[[], list[float]]:
        model, optimizer = made(n_layers)
        model.eval()  # threads share the random numbers of dropout
        step = mw.parallelize(model, optimizer, loss_of, backend=backend, **PLANS["one device"])
        return lambda: [float(step(tokens)) for tokens in batches(4)]

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(training(n)) for n in (1, 2)]
        together = [one.result(300) for one in running]
    torch.manual_seed(0)  # nothing of torch is replaced any more
    assert together == [pytest.approx(training(n)(), rel=1e-5) for n in (1, 2)]
