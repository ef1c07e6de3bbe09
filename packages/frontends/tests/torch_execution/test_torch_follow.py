"""`step.follow` and `step.evaluate`: other functions of a model, where a step keeps its state."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import frontends.torch as mw
import pytest
import torch
import transformers
from costmodel import Cluster
from frontends import PlanError, UnsupportedStepError
from frontends.answer.plan import Plan
from frontends.search.held import homes_of
from frontends.search.plan_options import PlanOptions
from frontends.torch.api import parallel
from frontends.torch.api.captured_step import CapturedStep
from frontends.torch.api.plan_for import plan_capture
from torch import nn
from torch.nn.functional import cross_entropy

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
WAYS: dict[str, dict[str, Any]] = {
    "one stage": {"stages": 1},
    "zero": {"strategy": "zero", "microbatches": 2},
    "two stages": {"stages": 2, "microbatches": 2},
    "four stages": {"stages": 4, "microbatches": 4},
}


class Model(nn.Module):
    """Words are looked up and predicted with one table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 16)
        self.body = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Dropout()) for _ in range(4))
        self.seen = nn.Buffer(torch.zeros(()))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.table(words)
        for layer in self.body:
            x = x + torch.tanh(layer(x))
        return x @ self.table.weight.T


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return cross_entropy(model(batch["x"]).flatten(0, 1), batch["y"].flatten())


def quality(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
    logits = model(batch["x"])
    right = (logits.argmax(-1) == batch["y"]).float().mean()
    return {"loss": loss_of(model, batch).detach(), "right": right, "logits": logits.detach()}


@pytest.fixture
def step(request: pytest.FixtureRequest) -> mw.ParallelStep:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    return mw.parallelize(model, optimizer, loss_of, cluster=CLUSTER, **WAYS[request.param])


@pytest.fixture(autouse=True)
def _what_moves_is_an_error() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*planned on its own")
        yield


def batch_of(n: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    return {name: torch.randint(0, 12, (n, 5), generator=generator) for name in ("x", "y")}


def assert_follows(step: mw.ParallelStep, other: CapturedStep) -> None:
    homes = homes_of(step.plan)
    for variant in other.variants:
        assert variant.plan.strategy == "held"
        theirs = homes_of(variant.plan)
        assert {name: homes.get(name) for name in theirs} == theirs


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("step", WAYS, indirect=True)
def test_functions_follow_a_step_to_where_its_state_is(step: mw.ParallelStep) -> None:
    model: Any = step.model
    follows = step.follow(quality)
    with pytest.raises(PlanError, match=r"has a plan after its first call"):
        follows(model, batch_of(8))
    for n in (8, 3):
        step(batch_of(8))
        model.eval()
        assert_same(follows(model, batch_of(n)), quality(model, batch_of(n)))
        model.train()
        before = torch.get_rng_state()
        found = follows(model, batch_of(8))  # with dropout: another variant
        torch.set_rng_state(before)
        assert_same(found, quality(model, batch_of(8)))
    assert len(follows.variants) == 3
    assert len(step.variants) == 1
    assert_follows(step, follows)
    assert follows.verify(model, batch_of(8)).results < 1e-5


@pytest.mark.parametrize("step", ["two stages"], indirect=True)
def test_evaluate_is_in_evaluation_mode_and_leaves_modules_as_they_are(
    step: mw.ParallelStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = step.model
    step(batch_of(8))
    model.body[0].eval()
    before = [module.training for module in model.modules()]
    found = [float(step.evaluate(loss_of, batch_of(n))) for n in (8, 4, 8)]
    assert [module.training for module in model.modules()] == before
    model.eval()
    expected = [float(loss_of(model, batch_of(n)).detach()) for n in (8, 4, 8)]
    assert found == pytest.approx(expected, rel=1e-5)
    (follows,) = step._evaluations.values()
    assert len(follows.variants) == 2
    assert_follows(step, follows)
    with pytest.raises(ValueError, match="no batch"):
        step.evaluate(_fails, batch_of(8))
    monkeypatch.setattr(parallel, "_MOST_EVALUATIONS", 1)
    step.evaluate(lambda model, batch: 2 * loss_of(model, batch), batch_of(8))
    assert len(step._evaluations) == 1


def _fails(model: nn.Module, batch: Any) -> Any:
    raise ValueError("no batch")


@pytest.mark.parametrize("step", ["two stages"], indirect=True)
def test_a_function_may_write_buffers_and_differentiate_but_not_train(
    step: mw.ParallelStep,
) -> None:
    model: Any = step.model
    optimizer = step.optimizer
    model.eval()
    batch = batch_of(8)
    step(batch)

    def count(batch: Any) -> None:
        with torch.no_grad():
            model.seen += batch["x"].sum()

    def slope(batch: Any) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(loss_of(model, batch), [model.table.weight])
        return gradient

    follows = step.follow(count)
    follows(batch)
    follows(batch)
    assert float(model.seen) == 2 * float(batch["x"].sum())
    torch.testing.assert_close(step.follow(slope)(batch), slope(batch), rtol=1e-4, atol=1e-6)
    before = [parameter.grad for parameter in model.parameters()]
    bad: dict[str, Callable[[Any], Any]] = {
        "uses or computes one": lambda batch: loss_of(model, batch).backward(),
        "uses or computes": lambda batch: model.table.weight.grad.sum(),
        "sets that of 'table.weight'": lambda batch: optimizer.zero_grad(),
        r"(uses or computes one|calls the optimizer's step\(\))": lambda batch: optimizer.step(),
    }
    for why, function in bad.items():
        with pytest.raises(UnsupportedStepError, match=f"leaves the gradients .* this one {why}"):
            step.follow(function)(batch)
    after = [parameter.grad for parameter in model.parameters()]
    assert all(a is b for a, b in zip(before, after, strict=True))
    step(batch)


@pytest.mark.parametrize("step", ["four stages"], indirect=True)
def test_a_function_that_cannot_follow_is_planned_on_its_own(step: mw.ParallelStep) -> None:
    model: Any = step.model
    step(batch_of(8))

    def backwards(words: torch.Tensor) -> torch.Tensor:
        x = model.table(words)
        for layer in reversed(model.body):
            x = x + torch.tanh(layer[0](x))
        return x.detach()

    follows = step.follow(backwards)
    with pytest.warns(UserWarning, match="backwards is planned on its own .* in other stages than"):
        found = follows(batch_of(8)["x"])
    torch.testing.assert_close(found, backwards(batch_of(8)["x"]), rtol=1e-5, atol=1e-5)


def test_a_model_of_hugging_face_generates_where_its_weights_are() -> None:
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 16}
    config = transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=5, pad_token_id=0)
    model = transformers.GPT2LMHeadModel(config)
    words = torch.randint(6, 32, (4, 6))
    batch = {"input_ids": words, "labels": words}

    def loss_of(model: nn.Module, batch: Any) -> Any:
        return model(**batch).loss

    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    step = mw.parallelize(model, optimizer, loss_of, cluster=CLUSTER, stages=1)
    step(batch)
    model.eval()

    def generate(words: torch.Tensor) -> Any:
        return model.generate(words, max_new_tokens=2, do_sample=True)

    follows = step.follow(generate)
    before = torch.get_rng_state()
    found = follows(words)
    torch.set_rng_state(before)
    assert torch.equal(found, generate(words))
    assert_follows(step, follows)


def test_other_processes_make_of_a_plans_text_what_the_first_one_planned() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    words = torch.randint(0, 64, (8, 8))
    batch = {"input_ids": words, "labels": words}
    cluster = Cluster.preset("virtual-cpu").resized(devices_per_host=2)
    how: dict[str, Any] = {"stages": 2, "chunks": 2, "microbatches": 2}
    step = mw.parallelize(
        model, optimizer, lambda model, batch: model(**batch).loss, cluster=cluster, **how
    )
    step(batch)
    other = step.follow(
        lambda batch: [*model(**batch, num_items_in_batch=batch["labels"].ne(-100).sum()).values()]
    )
    with torch.no_grad():
        other(batch)
    (variant,) = other.variants
    assert variant.plan.strategy == "held"
    options = PlanOptions().with_plan(Plan.from_json(variant.plan.to_json()))
    again = plan_capture(variant.capture, cluster, options)
    assert again.plan == variant.plan
    assert again.layered == variant.planned.layered
