"""Plan for your own cluster, described in own_cluster.json: what would a faster network gain?"""

import json
from pathlib import Path

import frontends.jax as mw
import jax
import jax.numpy as jnp
from costmodel import Cluster

WIDTH, LAYERS = 2048, 4


def train_step(params, batch):
    def loss_of(params):
        x = batch["x"]
        for layer in params:
            x = x + jnp.tanh(x @ layer["up"]) @ layer["down"]
        return jnp.mean((x - batch["y"]) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss


def shape(*dims):
    return jax.ShapeDtypeStruct(dims, jnp.float32)  # planning needs no values


params = [{"up": shape(WIDTH, 4 * WIDTH), "down": shape(4 * WIDTH, WIDTH)} for _ in range(LAYERS)]
arguments = (params, {"x": shape(1024, WIDTH), "y": shape(1024, WIDTH)})

described = json.loads(Path(__file__).with_name("own_cluster.json").read_text())
steps_s = {}
for gbit in (10, 25, 100):
    described["levels"][0]["link"]["bandwidth_bytes_per_s"] = gbit * 1e9 / 8
    cluster = Cluster.from_json(json.dumps(described))
    plan = mw.plan_for(train_step, arguments, cluster).plan
    steps_s[gbit] = plan.step_s
    print(f"{gbit:3} Gbit/s: {plan.step_s * 1e3:6.1f} ms a step, {plan!r}")

assert steps_s[10] >= steps_s[25] >= steps_s[100]
