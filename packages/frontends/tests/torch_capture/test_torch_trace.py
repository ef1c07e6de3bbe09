"""A captured step has three phases, the user's names, and the numbers of eager PyTorch."""

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import autoshard
import pytest
import torch
from frontends.errors import AccumulationError, BatchError, UnsupportedStepError
from frontends.step.step import APPLY, BACKWARD, FORWARD
from frontends.torch.capture.arguments import State
from frontends.torch.capture.capture import training_step
from frontends.torch.testing import Example, arguments_of, error, mlp, run_in_microbatches
from frontends.torch.trace.trace import Capture, Trace
from torch import nn
from torch.nn import functional

torch.set_num_threads(1)

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 1e-2, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-2, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
}


def capture(example: Example) -> Capture:
    return Capture(example.step, example.model, example.optimizer, example.batches[0])


def compare(example: Example, microbatches: int, tolerance: float = 1e-5) -> Trace:
    """Train both ways and compare what is returned and what is kept."""
    captured = capture(example)
    traced = captured.at(microbatches)
    autoshard.verify(traced.step.graph)
    model, optimizer = copy.deepcopy((example.model, example.optimizer))
    torch.manual_seed(1)
    expected = [example.step(model, optimizer, batch) for batch in example.batches]
    torch.manual_seed(1)
    state: dict[str, torch.Tensor] = {}
    for batch, result in zip(example.batches, expected, strict=True):
        arguments = arguments_of(captured.state, batch) | state
        found, updates = run_in_microbatches(traced, arguments)
        state.update(updates)
        assert error(found, result) < tolerance
    kept = State(model, optimizer).tensors
    assert error(state, {name: kept[name].detach() for name in state}) < tolerance
    return traced


def kinds(traced: Trace, phase: int) -> Counter[str]:
    return Counter(op.kind for op in traced.step.graph.operators if op.phase == phase)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_graph_computes_what_eager_computes(name: str) -> None:
    compare(mlp(OPTIMIZERS[name]), 2)


@pytest.mark.parametrize("microbatches", [1, 4, 8])
def test_microbatches_do_not_change_the_numbers(microbatches: int) -> None:
    traced = compare(mlp(), microbatches)
    assert traced.step.microbatches == microbatches


def test_phases_are_found_without_marks() -> None:
    traced = capture(mlp()).at(2)
    forward, backward, apply = (kinds(traced, phase) for phase in (FORWARD, BACKWARD, APPLY))
    assert forward["mm"] == 2
    assert backward["mm"] == 3
    assert apply["lerp"] == 6  # Adam's, one for each parameter
    assert not forward["lerp"] + backward["lerp"]


def test_names_are_the_users() -> None:
    traced = capture(mlp()).at(1)
    names = [a.name for a in traced.arguments]
    assert "params['4.weight']" in names
    assert "optimizer['exp_avg']['4.weight']" in names
    assert "batch['x']" in names
    aliases = {output.alias for output in traced.step.graph.outputs}
    assert {"params['4.weight']", "optimizer['step']['4.weight']"} <= aliases


def test_tracing_changes_neither_state_nor_random_numbers() -> None:
    example = mlp()
    before = copy.deepcopy(example.model.state_dict())
    generator = torch.get_rng_state()
    capture(example)
    assert error(dict(example.model.state_dict()), dict(before)) == 0
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(p.grad is None for p in example.model.parameters())


def test_a_learning_rate_may_change_between_steps() -> None:
    example = mlp(dropout=0.0)
    traced = capture(example).at(1)
    example.optimizer.param_groups[0]["lr"] = 0.5
    arguments = arguments_of(State(example.model, example.optimizer), example.batches[0])
    _, updates = run_in_microbatches(traced, arguments)
    example.step(example.model, example.optimizer, example.batches[0])
    weight = example.model[4].weight.detach()  # type: ignore[index]
    assert error(updates["params['4.weight']"], weight) < 1e-5


def test_numbers_are_returned_as_numbers() -> None:
    example = mlp()

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        loss = functional.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.item(), "name": "mlp"}

    example.step = step
    traced = compare(example, 2)
    found, _ = run_in_microbatches(
        traced, arguments_of(State(example.model, example.optimizer), example.batches[0])
    )
    assert isinstance(found["loss"], float)
    assert found["name"] == "mlp"


def test_results_for_each_example_come_back_whole() -> None:
    example = mlp(dropout=0.0)

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        optimizer.zero_grad()
        logits = model(batch["x"])
        functional.cross_entropy(logits, batch["y"]).backward()
        optimizer.step()
        return logits.detach(), logits.argmax(-1), logits.argmax(-1) == batch["y"]

    example.step = step
    compare(example, 4)


def test_checkpointing_draws_the_same_numbers_again() -> None:
    example = mlp()
    inner = example.model

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            from torch.utils.checkpoint import checkpoint

            return checkpoint(self.inner, x, use_reentrant=False)

    model = Checkpointed()
    example = Example(model, OPTIMIZERS["adamw"], example.step, example.batches)
    traced = compare(example, 2)
    assert kinds(traced, BACKWARD)["mm"] == 4  # one of them is forward's, made again


def test_gradients_are_clipped_by_the_norm_of_all() -> None:
    example = mlp()

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss.detach(), norm

    example.step = step
    compare(example, 2)


def test_refuses_statistics_of_the_batch_in_microbatches() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    batches = [{"x": torch.randn(8, 4)} for _ in range(3)]
    step = training_step(lambda model, batch: model(batch["x"]).square().mean())
    example = Example(model, OPTIMIZERS["sgd"], step, batches)
    compare(example, 1)
    with pytest.raises(AccumulationError, match="must be a sum over its examples"):
        capture(example).at(2)


def test_refuses_decisions_on_numbers_with_the_users_line() -> None:
    example = mlp()

    def loss(model: Any, batch: Any) -> Any:
        found = functional.cross_entropy(model(batch["x"]), batch["y"])
        return found * range(int(found)).stop  # the line to be named

    example.step = training_step(loss)
    with pytest.raises(UnsupportedStepError, match=r"test_torch_trace\.py:\d+: .*range"):
        capture(example)


def test_refuses_a_batch_that_cannot_be_cut() -> None:
    with pytest.raises(BatchError, match=r"must be a multiple of microbatches; got batch\['x'\]"):
        capture(mlp()).at(3)


def test_parts_of_a_tensor_may_be_written() -> None:
    example = mlp(dropout=0.0)

    def loss(model: Any, batch: Any) -> Any:
        shifted = torch.zeros_like(batch["x"])
        shifted[:, 1:] = batch["x"][:, :-1]
        shifted[:, 0].fill_(1.0)
        logits = model(shifted)
        return functional.cross_entropy(logits, batch["y"])

    example.step = training_step(loss)
    compare(example, 2)


def test_autocast_is_as_near_as_its_type_is_exact() -> None:
    example = mlp(OPTIMIZERS["momentum"], dropout=0.0)

    def loss(model: Any, batch: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return functional.cross_entropy(model(batch["x"]), batch["y"])

    example.step = training_step(loss)
    traced = compare(example, 2, tolerance=2**-6)  # of bfloat16, 4 units
    assert {v.dtype for v in traced.step.graph.values} >= {"bfloat16", "float32"}


def test_groups_differ_and_some_parameters_are_frozen() -> None:
    example = mlp(dropout=0.0)
    first, _, _, _, last = example.model  # type: ignore[misc]
    first.weight.requires_grad_(False)
    groups = [
        {"params": [last.weight], "weight_decay": 0.1, "lr": 0.1},
        {"params": [first.bias, last.bias], "weight_decay": 0.0},
    ]
    example.optimizer = torch.optim.AdamW(groups, lr=1e-2)
    traced = compare(example, 2)
    aliases = {output.alias for output in traced.step.graph.outputs}
    assert "params['4.weight']" in aliases
    assert "params['0.weight']" not in aliases
    rates = [f"optimizer.param_groups[{i}]['lr']" for i in range(2)]
    assert [a.name for a in traced.arguments if a.name.endswith("['lr']")] == rates


def test_tied_weights_are_one_parameter() -> None:
    torch.manual_seed(0)
    table, head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
    head.weight = table.weight
    tokens = [torch.randint(0, 16, (8, 4)) for _ in range(3)]
    step = training_step(
        lambda model, b: functional.cross_entropy(model(b).flatten(0, 1), b.flatten())
    )
    example = Example(nn.Sequential(table, head), OPTIMIZERS["adamw"], step, tokens)
    traced = compare(example, 2)
    assert [a.name for a in traced.arguments if a.name.startswith("params")] == [
        "params['0.weight']"
    ]
    assert "batch" in [a.name for a in traced.arguments]


def test_refuses_random_numbers_that_depend_on_weights() -> None:
    example = mlp(dropout=0.0)
    example.step = training_step(
        lambda model, batch: (model(batch["x"]) * torch.poisson(model(batch["x"]).exp())).sum()
    )
    with pytest.raises(UnsupportedStepError, match="drawn before the step runs"):
        capture(example)


def test_refuses_an_optimizer_of_other_parameters() -> None:
    example = mlp()
    example.optimizer = torch.optim.SGD([*example.model.parameters(), torch.ones(1)], 0.1)
    with pytest.raises(UnsupportedStepError, match="parameters of the model"):
        capture(example)


def test_what_fails_without_values_is_refused_with_the_users_line() -> None:
    example = mlp()
    example.step = training_step(lambda model, batch: model(batch["x"][:, :3]).sum())
    with pytest.raises(UnsupportedStepError, match=r"fails then, at .*test_torch_trace\.py:\d+"):
        capture(example)
