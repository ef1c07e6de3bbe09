"""A run of several processes as a user writes it, for test_resume.py: `training.py FOLDER NAME`.

It makes its state or takes it from the last checkpoint, and writes what came of each step to
FOLDER/NAME.process.json. In the run called `killed` one process dies before the fourth step, in
that called `cut` after the third, while it writes a second checkpoint.
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import frontends.jax as mw
import jax
import jax.numpy as jnp
import numpy as np
import optax
from costmodel import Cluster

N_STEPS, SAVED_AFTER, AT_FAULT = 5, 2, 2
WIDTH, N_ROWS = 4, 64
OPTIMIZER = optax.adamw(1e-2, eps=1e-2)
KEY = 11


class Examples:
    """Each is made when it is read; which were, is known."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 3 * N_ROWS

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        rng = np.random.default_rng(index)
        return {name: rng.normal(size=WIDTH).astype(np.float32) for name in ("x", "y")}


def init(key: jax.Array) -> Any:
    """Four layers, stacked: each process gets those of its stage."""
    params = {"w": jax.random.normal(key, (4, WIDTH, WIDTH)), "b": jnp.zeros((4, WIDTH))}
    return params, OPTIMIZER.init(params)


def train_step(params: Any, opt_state: Any, batch: Any) -> Any:
    def loss_of(params: Any) -> Any:
        def layer(x: Any, of_layer: Any) -> tuple[Any, None]:
            return jnp.tanh(x @ of_layer["w"] + of_layer["b"]), None

        x, _ = jax.lax.scan(layer, batch["x"], params)
        errors = jnp.mean((x - batch["y"]) ** 2, 1)
        return jnp.mean(errors), {"errors": errors, "last": jnp.mean(x)}

    (loss, metrics), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
    updates, opt_state = OPTIMIZER.update(gradients, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), {"loss": loss, **metrics}


def main(folder: Path, name: str) -> None:
    me = int(os.environ["PMI_RANK"])
    # A launcher loses what processes print when one of them has ended.
    os.dup2(os.open(folder / f"{name}.{me}.err", os.O_CREAT | os.O_WRONLY), sys.stderr.fileno())
    mw.init(4)
    step = mw.parallelize(
        train_step,
        cluster=Cluster.preset("two-hosts").resized(devices_per_host=2),
        strategy="equal_layers",
        pin={"batch['x']": "S0R", "batch['y']": "S0R"},
        microbatches=2,
        donate=True,
        deadline_s=8.0,
    )
    batch = {n: jax.ShapeDtypeStruct((N_ROWS, WIDTH), jnp.float32) for n in ("x", "y")}
    like = step.abstract_state(init, jax.random.key(KEY), batch=batch)
    last = jax.sharding.SingleDeviceSharding(jax.devices()[-1])  # one process has all of it
    extra = jax.ShapeDtypeStruct((3,), jnp.float32, sharding=last)
    start = mw.latest(folder / "checkpoints")
    if start is None:
        state = step.init(init, jax.random.key(KEY))
        ones = np.ones(3, np.float32)
        kept = jax.make_array_from_callback((3,), last, lambda i: ones[i], dtype=ones.dtype)
    else:
        state, kept = mw.restore(folder / "checkpoints", (like, extra))
    examples = Examples()
    found: list[dict[str, Any]] = []
    feed = step.feed(examples, start=start or 0)
    for number, batch in zip(range(start or 0, N_STEPS), feed, strict=False):
        if (name, number, me) == ("killed", 3, AT_FAULT):
            os.kill(os.getpid(), signal.SIGKILL)
        state, metrics = step(*state, batch)
        metrics = {n: np.asarray(value).tolist() for n, value in metrics.items()}
        found.append({"step": number, **metrics})
        report = {
            "steps": found,
            "stages": len(step.plan.stages),
            "kept": [shard.data.tolist() for shard in kept.addressable_shards],
            "rows": sorted({index % N_ROWS for index in examples.read}),
        }
        Path(folder, f"{name}.{me}.json").write_text(json.dumps(report))
        if (name, number, me) == ("cut", SAVED_AFTER, AT_FAULT):
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # a write of more bytes is its end
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        if number + 1 == SAVED_AFTER or (name, number) == ("cut", SAVED_AFTER):
            mw.save(folder / "checkpoints", number + 1, (state, kept))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
