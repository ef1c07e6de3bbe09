"""Train a vision transformer of Hugging Face: which quarter of the picture has a bright spot?"""

import frontends.torch as mw
import torch
import transformers
from costmodel import Cluster

SIDE, BATCH, STEPS = 32, 32, 30

torch.manual_seed(0)
sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
patches = {"image_size": SIDE, "patch_size": 8, "intermediate_size": 96}
config = transformers.ViTConfig(**sizes, **patches, num_labels=4)
model = transformers.ViTForImageClassification(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)


def next_batch():
    labels = torch.randint(0, 4, (BATCH,))
    pixels = 0.1 * torch.randn(BATCH, 3, SIDE, SIDE)
    for picture, label in zip(pixels, labels.tolist()):
        row, column = (16 * (label // 2), 16 * (label % 2))
        picture[:, row + 4 : row + 12, column + 4 : column + 12] += 1
    return {"pixel_values": pixels, "labels": labels}


def train_step(batch):  # a whole step, so that it may return more than the loss
    optimizer.zero_grad()
    result = model(**batch)
    result.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    right = (result.logits.argmax(-1) == batch["labels"]).float().mean()
    return result.loss.detach(), right


def accuracy(model, batch):
    guessed = model(pixel_values=batch["pixel_values"]).logits.argmax(-1)
    return (guessed == batch["labels"]).float().mean()


cluster = Cluster.preset("two-hosts").resized(devices_per_host=2)
step = mw.parallelize_step(train_step, model, optimizer, cluster=cluster)
results = [step(next_batch()) for _ in range(STEPS)]
first, last = (float(results[i][0]) for i in (0, -1))
print(repr(step.plan))
print(f"loss {first:.2f} to {last:.2f}, {float(results[-1][1]):.0%} right")
print(f"{float(step.evaluate(accuracy, next_batch())):.0%} right of new pictures")
assert last < 0.7 * first
