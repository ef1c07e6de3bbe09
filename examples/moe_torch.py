"""Train a mixture of experts, Mixtral of Hugging Face, and see where the plan keeps the experts."""

import frontends.torch as mw
import torch
import transformers
from costmodel import Cluster

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
config = transformers.MixtralConfig(**sizes, **heads, **experts, use_cache=False)
model = transformers.MixtralForCausalLM(config)
# All experts as one product, so that the operators of a step do not depend on the tokens.
model.set_experts_implementation("batched_mm")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

tokens = torch.randint(0, 64, (8, 16))
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
losses = [float(step(batch)) for _ in range(10)]

kept = [
    stored for stage in step.plan.stages for stored in stage.inputs if "experts" in stored.value
]
for stored in kept[:4]:  # the first letter of a spec is that of the dim of experts
    print(stored.value, stored.spec)
print(f"loss {losses[0]:.2f} to {losses[-1]:.2f}")
assert losses[-1] < losses[0]
