"""What fails while a step runs names the operator, the user's line, the stage and what was read;
the next call goes on as on one device."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import crossmesh
import pytest
import torch
from costmodel import Cluster
from frontends.errors import (
    ExchangeError,
    InternalError,
    PeerError,
    RunError,
    StepError,
    UnsupportedStepError,
)
from frontends.torch import parallelize
from frontends.torch.capture.capture import training_step
from frontends.torch.run.watch import exchanging
from frontends.torch.trace.trace import Capture
from torch import nn
from torch.nn import functional

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
Batch = dict[str, Any]
N = 8


class Classifier(nn.Module):
    """Tokens are looked up, something is left out, and they are classified."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(16, 8), nn.Linear(8, 8)
        self.head, self.limit = nn.Linear(8, 16), 99

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        looked_up = self.table(tokens)
        dropped = functional.dropout(torch.tanh(self.body(looked_up)), 0.3)
        if len(tokens) > self.limit:
            raise ValueError("too many")
        return self.head(dropped)


def classify(model: nn.Module, batch: Batch) -> torch.Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["y"])


def solve(model: nn.Module, batch: Batch) -> torch.Tensor:
    return torch.linalg.solve(batch["a"], model(batch["x"])[..., :4, None]).square().mean()


def factor(model: nn.Module, batch: Batch) -> torch.Tensor:
    return (torch.linalg.cholesky(batch["a"])[:, 0] * model(batch["x"])[:, :4]).mean()


def divide(model: nn.Module, batch: Batch) -> torch.Tensor:
    return (model(batch["x"]).mean(1) * (batch["x"] // batch["y"])).mean()


def scale(model: nn.Module, batch: Batch) -> torch.Tensor:
    return model(batch["x"]).mean() * (1 / batch["k"])


def fill(model: nn.Module, batch: Batch) -> torch.Tensor:
    return model(batch["x"]).square().mean()


def batch_of(**changed: Any) -> Batch:
    torch.manual_seed(1)
    batch = {"x": torch.randint(1, 16, (N,)), "y": torch.randint(1, 16, (N,)), "k": 2}
    return {**batch, "a": torch.eye(4).repeat(N, 1, 1), **changed}


def line_of(function: Callable[..., Any], number: int) -> str:
    lines, first = inspect.getsourcelines(function)
    return f"test_torch_errors.py:{first + number}: `{lines[number].strip()[:100]}`"


FAR = torch.full((N,), 20)
CASES = {
    "a token that the table lacks": (
        classify,
        {"x": FAR},
        line_of(Classifier.forward, 1),
        "in forward of stage 0, microbatch 0 of 0 to 1, on params['table.weight'] float32[16, 8] "
        "and batch['x'] int64[4]: IndexError: index",
    ),
    "a class that there is not": (
        classify,
        {"y": FAR},
        line_of(classify, 1),
        "in forward of stage 1, microbatch 0 of 0 to 1, on",
    ),
    "a singular matrix": (
        solve,
        {"a": torch.zeros(N, 4, 4)},
        line_of(solve, 1),
        "on batch['a'] float32[8, 4, 4] and",
    ),
    "a matrix that is not positive": (
        factor,
        {"a": -torch.eye(4).repeat(N, 1, 1)},
        line_of(factor, 1),
        "fails before the first microbatch, on batch['a'] float32[8, 4, 4]: _LinAlgError: ",
    ),
    "an integer divided by zero": (
        divide,
        {"y": torch.zeros(N, dtype=torch.int64)},
        line_of(divide, 1),
        "on batch['x'] int64[4] and batch['y'] int64[4]: RuntimeError: ZeroDivisionError",
    ),
    "a number divided by zero": (
        scale,
        {"k": 0},
        line_of(scale, 1),
        "fails in Python, on batch['k'] 0: ZeroDivisionError: division by zero",
    ),
}


def made(loss: Any, is_eager: bool, **options: Any) -> tuple[Classifier, Callable[[Batch], Any]]:
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), 0.1, eps=1e-2)
    if is_eager:
        return model, functools.partial(training_step(loss), model, optimizer)
    options = {"strategy": "equal_layers", "microbatches": 1 if loss is solve else 2, **options}
    return model, parallelize(model, optimizer, loss, cluster=CLUSTER, **options)


def losses(call: Callable[[Batch], Any], bad: Batch, kind: Any) -> tuple[list[float], Any]:
    """Of two calls, one that fails, and two more; and what that raised."""
    found = [float(call(batch_of())), float(call(batch_of()))]
    torch.manual_seed(2)
    with pytest.raises(kind) as caught:
        call(bad)
    found.append(float(torch.rand(())))  # the failing call has drawn as much as on one device
    return [*found, float(call(batch_of())), float(call(batch_of()))], caught.value


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:no sharding rule")
def test_an_operator_that_fails_is_named_and_the_next_call_goes_on(case: str) -> None:
    loss, changed, line, what = CASES[case]
    bad = batch_of(**changed)
    kinds = RuntimeError, LookupError, ArithmeticError
    expected, _ = losses(made(loss, is_eager=True)[1], bad, kinds)
    _, step = made(loss, is_eager=False)
    found, error = losses(step, bad, StepError)
    assert found == pytest.approx(expected, rel=1e-4)
    assert line in str(error)
    assert what in str(error)
    assert line in error.line
    assert all(value in str(error) for value in error.values)
    assert type(error.__cause__).__name__ in str(error)
    assert "OperatorError" not in type(error.__cause__).__name__


def test_a_step_that_fails_leaves_the_state_as_it_was() -> None:
    model, step = made(classify, is_eager=False)
    step(batch_of())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(StepError):
        step(batch_of(y=FAR))
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


@pytest.mark.parametrize("strategy", ["data_parallel", "megatron"])
@pytest.mark.parametrize("place", [20, -1])
def test_places_outside_of_a_table_fail_however_it_is_split(strategy: str, place: int) -> None:
    pin = {"params['table.weight']": "S0R"} if strategy == "megatron" else None
    _, step = made(classify, is_eager=False, strategy="search" if pin else strategy, pin=pin)
    step(batch_of())
    with pytest.raises(StepError, match=r"aten.embedding.default, .*: IndexError: index"):
        step(batch_of(x=torch.full((N,), place)))


def test_what_the_users_code_raises_stays_what_it_is() -> None:
    model, step = made(classify, is_eager=False)
    expected, call = made(classify, is_eager=True)
    found = []
    for run, each in ((step, model), (call, expected)):
        torch.manual_seed(3)
        run(batch_of())
        each.limit = 4
        with pytest.raises(ValueError, match=r"^too many$") as caught:
            run(batch_of())
        assert type(caught.value) is ValueError
        each.limit = 99
        hook = each.head.register_forward_pre_hook(raising)
        with pytest.raises(KeyError):
            run(batch_of())
        hook.remove()
        torch.manual_seed(4)
        found.append(float(run(batch_of())))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def raising(module: nn.Module, arguments: Any) -> None:
    raise KeyError("hook")


def test_shapes_that_do_not_fit_are_refused_at_the_call_that_has_them() -> None:
    _, step = made(classify, is_eager=False)
    step(batch_of())
    with pytest.raises(UnsupportedStepError, match="fails then, at ") as caught:
        step(batch_of(y=torch.ones(N - 2, dtype=torch.int64)))
    assert line_of(classify, 1) in str(caught.value)
    step(batch_of())


def test_memory_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    _, step = made(fill, is_eager=False)
    step(batch_of())
    runtime = step.runtime  # type: ignore[attr-defined]

    def fail(*arguments: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1")

    monkeypatch.setattr(runtime, "_look_again", fail)
    with pytest.raises(RunError, match=r"running a step failed: .*this process has no more memory"):
        step(batch_of())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("[../gloo/transport] Connection closed by peer"), ExchangeError),
        (crossmesh.TransferError("late"), ExchangeError),
        (PeerError("process 1 is gone"), PeerError),
        (KeyError("w"), KeyError),  # which the step's boundary reports
    ],
)
def test_what_another_process_s_end_looks_like_is_typed(
    error: Exception, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught, exchanging():
        raise error
    assert type(caught.value) is kind
    assert error in (caught.value, caught.value.__cause__)


def test_what_fails_in_planning_names_the_operator_or_asks_for_a_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise KeyError("val")

    for what in ("rules.rules.Rules.of", "lower.lower.LocalCall"):
        _, step = made(classify, is_eager=False)
        with monkeypatch.context() as patch:
            patch.setattr(f"frontends.torch.{what}", fail)
            with pytest.raises(UnsupportedStepError, match=PLANNED):
                step(batch_of())
    _, step = made(classify, is_eager=False)
    monkeypatch.setattr("frontends.torch.api.plan_for.plan_traces", fail)
    with pytest.raises(InternalError, match=r"planning failed: KeyError: 'val'. Please report it"):
        step(batch_of())


PLANNED = r"; aten.embedding.*test_torch_errors.py:.*, cannot be planned on .*KeyError: 'val'"


def mixing(model: nn.Module, batch: Batch) -> torch.Tensor:
    logits = model(batch["x"])
    return ((logits @ logits.T).tanh() @ logits @ model.head.weight).tanh().mean()


def test_what_cannot_be_accumulated_is_named_with_its_line() -> None:
    _, step = made(mixing, is_eager=False)
    with pytest.raises(UnsupportedStepError, match="must be a sum over its examples") as caught:
        step(batch_of())
    assert line_of(mixing, 2) in str(caught.value)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.sin(self.first(x))
        return torch.utils.checkpoint.checkpoint(self.again, hidden, use_reentrant=False)

    def again(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.second(hidden))


def test_operators_of_gradients_come_from_the_line_of_what_they_are_the_gradient_of() -> None:
    model = Checkpointed()
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    step = training_step(lambda model, x: model(x).square().mean())
    trace = Capture(step, model, optimizer, torch.randn(4, 4)).at(1)
    said = {name: str(origin) for name, origin in trace.origins.items()}

    def of(kind: str) -> list[str]:
        return [text for name, text in said.items() if name.startswith(f"{kind}.")]

    (sin,), (cos,) = of("sin"), of("cos")
    assert line_of(Checkpointed.forward, 1) in sin
    assert sin.startswith("at ")
    assert line_of(Checkpointed.forward, 1) in cos
    assert cos.startswith("in the gradient of ")
    first, again = of("sigmoid")  # which is computed again
    assert line_of(Checkpointed.again, 1) in first
    assert first == again
    assert all("optim/adam" in text for text in of("addcdiv"))


def test_lines_of_libraries_are_named_with_the_users() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "use_cache": False}
    config = transformers.LlamaConfig(vocab_size=16, **sizes, **heads)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    tokens = torch.ones(4, 4, dtype=torch.int64)

    def loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        return model(input_ids=tokens, labels=tokens).loss

    step = parallelize(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        loss,
        cluster=CLUSTER,
        strategy="data_parallel",
        microbatches=1,
    )
    step(tokens)
    with pytest.raises(StepError, match=r"aten.embedding") as caught:
        step(20 * tokens)
    own, library = caught.value.line.split("`, in ")
    assert "return model(input_ids=tokens, labels=tokens).loss" in own
    assert "modeling_llama.py:" in library
