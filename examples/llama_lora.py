"""Fine-tune a Llama with LoRA: frozen weights from safetensors, and small trained factors.

The checkpoint is made here, with random weights; put the folder of a model of yours into `folder`.
"""

import tempfile

import frontends.torch as mw
import torch
import transformers
from costmodel import Cluster

RANK = 4
sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
config = transformers.LlamaConfig(**sizes, **heads, use_cache=False)

torch.manual_seed(0)
folder = tempfile.mkdtemp()
pretrained = transformers.LlamaForCausalLM(config)
pretrained.save_pretrained(folder)


class LoraLinear(torch.nn.Linear):
    """A frozen linear layer and a trained update of low rank; `weight` keeps its name."""

    def __init__(self, n_in, n_out):
        super().__init__(n_in, n_out, bias=False)
        self.weight.requires_grad_(False)
        self.down = torch.nn.Parameter(0.02 * torch.randn(RANK, n_in))
        self.up = torch.nn.Parameter(torch.zeros(n_out, RANK))

    def forward(self, x):
        return super().forward(x) + (x @ self.down.T) @ self.up.T


def build():
    model = transformers.LlamaForCausalLM(config)
    model.requires_grad_(False)
    for layer in model.model.layers:
        for name in ("q_proj", "v_proj"):
            old = getattr(layer.self_attn, name)
            setattr(layer.self_attn, name, LoraLinear(old.in_features, old.out_features))
    return model


model = build()
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-2)
tokens = torch.randint(0, 256, (8, 32))
batch = {"input_ids": tokens, "labels": tokens}
cluster = Cluster.preset("two-hosts").resized(devices_per_host=2)
step = mw.parallelize(
    model,
    optimizer,
    lambda model, batch: model(**batch).loss,
    batch,
    cluster=cluster,
    microbatches=2,
)
step.load_state_dict(folder, strict=False)  # the file has no LoRA factors; they stay as built

losses = [float(step(batch)) for _ in range(10)]
with torch.no_grad():
    before = float(pretrained(**batch).loss)
print(
    f"{sum(p.numel() for p in trained):,} of {sum(p.numel() for p in model.parameters()):,} trained"
)
print(f"pretrained {before:.4f}, first step {losses[0]:.4f}, last step {losses[-1]:.4f}")
assert abs(losses[0] - before) < 1e-4  # the factors begin as no update
assert losses[-1] < losses[0]
