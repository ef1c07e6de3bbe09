"""Each error on docs/planning_fails.md is raised as the page says, and not after its fix."""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frontends.jax as mw
import frontends.torch
import jax
import jax.numpy as jnp
import pytest
import torch
from costmodel import Cluster

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "planning_fails.md").read_text()
SECTIONS = re.findall(r"^## (.*?)\n\n```text\n(\w+): (.*?)\n```", PAGE, flags=re.MULTILINE)

mw.init(8)  # before anything else uses JAX

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
PARAMS = {"in": jnp.ones((64, 256)), "out": jnp.ones((256, 64))}


def batch(n: int) -> dict[str, jax.Array]:
    return {"x": jnp.ones((n, 64)), "y": jnp.ones((n, 64))}


def loss_of(params: Any, batch: Any) -> Any:
    hidden = jnp.tanh(batch["x"] @ params["in"])
    return jnp.mean((hidden @ params["out"] - batch["y"]) ** 2)


def updated(params: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def train_step(params: Any, batch: Any) -> Any:
    loss, gradients = jax.value_and_grad(loss_of)(params, batch)
    return updated(params, gradients), loss


def mixing(params: Any, batch: Any) -> Any:
    def loss_of(params: Any) -> Any:
        hidden = batch["x"] @ params["in"]
        hidden = (hidden - hidden.mean(0)) / (hidden.std(0) + 1e-3)
        return jnp.mean((hidden @ params["out"] - batch["y"]) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    return updated(params, gradients), loss


def deciding(params: Any, batch: Any) -> Any:
    new, loss = train_step(params, batch)
    return new, loss * 2 if loss > 3 else loss


def choosing(params: Any, batch: Any) -> Any:
    new, loss = train_step(params, batch)
    return new, jnp.where(loss > 3, loss * 2, loss)


def silent(params: Any, batch: Any) -> Any:
    loss, _ = jax.value_and_grad(loss_of)(params, batch)
    return loss


def named(params: Any, batch: Any, who: str) -> Any:
    return train_step(params, batch)


def plan(step: Any = train_step, n: int = 8, cluster: Any = CLUSTER, **options: Any) -> Any:
    return mw.plan_for(step, (PARAMS, batch(n)), cluster, **options).plan


def prepare(step: Any, **options: Any) -> Any:
    options = {"cluster": CLUSTER, "batch_argnums": 1, **options}
    return mw.parallelize(step, **options).prepare(PARAMS, batch(8), "me")


def in_torch(loss_fn: Any) -> Any:
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.ones(8, 64)
    step = frontends.torch.parallelize(model, optimizer, loss_fn, rows, cluster=CLUSTER)
    return step.prepare(rows)


FAILS_AND_WORKS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "The model does not fit": (lambda: plan(memory_bytes=20_000), plan),
    "No plan of this strategy runs": (
        lambda: plan(n=6, strategy="data_parallel", microbatches=1),
        lambda: plan(n=8, strategy="data_parallel", microbatches=1),
    ),
    "The batch is no multiple of the microbatches": (
        lambda: plan(microbatches=3),
        lambda: plan(microbatches=4),
    ),
    "The step mixes examples": (
        lambda: plan(mixing, microbatches=2),
        lambda: plan(mixing, microbatches=1),
    ),
    "The step decides by a value": (lambda: plan(deciding), lambda: plan(choosing)),
    "The step returns nothing of its gradient": (lambda: plan(silent), lambda: plan(loss_of)),
    "An argument holds no arrays": (
        lambda: prepare(named),
        lambda: prepare(named, static_argnames="who"),
    ),
    "A pin names nothing": (
        lambda: plan(pin={"params['head']": "RS0"}),
        lambda: plan(pin={"params['in']": "RS0"}),
    ),
    "A pin does not fit its tensor": (
        lambda: plan(pin={"params['in']": "RS0R"}),
        lambda: plan(pin={"params['in']": "RS0"}),
    ),
    "There is no such schedule": (lambda: plan(schedule="1f1"), lambda: plan(schedule="1f1b")),
    "There is no such cluster": (
        lambda: plan(cluster=Cluster.preset("h100")),
        lambda: plan(cluster=Cluster.preset("h100-sxm").resized(devices_per_host=4)),
    ),
    "A cluster's file lacks figures": (
        lambda: Cluster.from_json('{"version": 1, "name": "ours"}'),
        lambda: Cluster.from_json(Cluster.preset("h100-sxm").to_json()),
    ),
    "An option beside a saved plan": (
        lambda: plan(plan=plan(), strategy="zero"),
        lambda: plan(plan=plan()),
    ),
    "Devices are missing": (
        lambda: mw.parallelize(train_step, cluster=Cluster.preset("two-hosts:4"))(PARAMS, batch(8)),
        lambda: mw.parallelize(train_step, cluster=CLUSTER)(PARAMS, batch(8)),
    ),
    "Shapes depend on values (PyTorch)": (
        lambda: in_torch(lambda model, x: model(x)[model(x) > 0].sum()),
        lambda: in_torch(lambda model, x: torch.where(model(x) > 0, model(x), 0).sum()),
    ),
    "Random numbers of Python (PyTorch)": (
        lambda: in_torch(lambda model, x: model(x).mean() * random.random()),
        lambda: in_torch(lambda model, x: model(x).mean() * torch.rand(())),
    ),
}


def test_every_error_of_the_page_is_provoked() -> None:
    assert [title for title, _, _ in SECTIONS] == list(FAILS_AND_WORKS)


@pytest.mark.parametrize(("title", "kind", "message"), SECTIONS, ids=[s[0] for s in SECTIONS])
def test_the_message_is_that_of_the_page_and_its_fix_works(
    title: str, kind: str, message: str
) -> None:
    fails, works = FAILS_AND_WORKS[title]
    pattern = ".*".join(map(re.escape, message.split("…")))
    with pytest.raises(Exception, match=f"(?s)^{pattern}$") as caught:
        fails()
    assert type(caught.value).__name__ == kind
    assert works() is not None
