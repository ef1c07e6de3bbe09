"""What does it cost to see, before a step, that it still is the step that was captured?

Baseline: one eager training step of GPT-2 small of `transformers` (12 blocks, d = 768), AdamW, one
example of 128 tokens, which is as short a step as it gets. Ours is the comparison of all guards of
that step, captured for one device: modules and their flags, parameters, what Python code read, the
batch and the numbers of `param_groups`. Where nothing is measured, the model has two small blocks.

Not shown: placing the batch and computing numbers, which `test_torch_step.py` has within its steps.
"""

import frontends.torch as mw
import pytest
import torch
import transformers
from costmodel import Cluster
from frontends.torch.base.trees import flatten
from frontends.torch.capture.arguments import name_leaves

ALONE = Cluster.preset("virtual-cpu").resized(devices_per_host=1)


@pytest.mark.parametrize("what", [pytest.param("eager step", marks=pytest.mark.nightly), "guards"])
def test_torch_guards(benchmark, what):
    sizes = (
        {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64} if benchmark.disabled else {}
    )
    torch.manual_seed(0)
    config = transformers.GPT2Config(use_cache=False, **sizes)
    model = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    tokens = torch.randint(0, config.vocab_size, (1, 128))
    batch = {"input_ids": tokens, "labels": tokens}

    def loss_fn(model, batch):
        return model(**batch).loss

    if what == "eager step":

        def eager():
            optimizer.zero_grad()
            loss_fn(model, batch).backward()
            optimizer.step()

        benchmark.pedantic(eager, rounds=5, warmup_rounds=1)
        return
    step = mw.parallelize(
        model, optimizer, loss_fn, batch, cluster=ALONE, strategy="data_parallel", microbatches=1
    )
    step(batch)
    (variant,) = step.variants
    guards, form = variant.capture.captured.guards, variant.form
    benchmark.extra_info["baseline"] = "test_torch_guards[eager step]"
    benchmark.extra_info["guards"] = str(len(guards.places) + len(guards.form.places))

    value_of = variant.capture.state.tensors.__getitem__

    def compare():
        given = form.batch((batch,), {})
        _, tree = flatten(given)
        return guards.difference(tree, name_leaves(given), value_of)

    assert benchmark.pedantic(compare, rounds=50, warmup_rounds=5) is None
