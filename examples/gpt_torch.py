"""Pretrain a small GPT-2 on real text in PyTorch: `python gpt_torch.py`, or
`torchrun --nproc-per-node 4 gpt_torch.py`.

The text is the source of Python's standard library, as bytes; put your own into `text`.
"""

import sysconfig
from pathlib import Path

import frontends.torch as mw
import numpy as np
import torch
import transformers
from costmodel import Cluster

LENGTH, BATCH, STEPS = 64, 16, 20

torch.manual_seed(0)
sizes = {"vocab_size": 256, "n_positions": LENGTH, "n_embd": 64, "n_layer": 4, "n_head": 4}
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, use_cache=False))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.3, total_iters=10)


def loss_fn(model, batch):
    return model(**batch).loss


library = Path(sysconfig.get_paths()["stdlib"])
text = np.frombuffer(b"".join(p.read_bytes() for p in sorted(library.glob("*.py"))), np.uint8)
pieces = np.lib.stride_tricks.sliding_window_view(text, LENGTH)
draw = np.random.default_rng(0)


def next_batch():
    rows = pieces[draw.integers(len(pieces), size=BATCH)].astype(np.int64)
    return {"input_ids": torch.tensor(rows), "labels": torch.tensor(rows)}


cluster = Cluster.preset("two-hosts").resized(devices_per_host=2)
step = mw.parallelize(model, optimizer, loss_fn, next_batch(), cluster=cluster, microbatches=4)
losses = []
for _ in range(STEPS):
    losses.append(float(step(next_batch())))
    schedule.step()  # learning rates are read at every step

print(repr(step.plan))
print(f"loss {losses[0]:.2f} to {losses[-1]:.2f}")
assert losses[-1] < losses[0] - 1
