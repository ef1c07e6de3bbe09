"""A trainer keeps an inference engine of another job up to date: `python weight_sync.py`.

The trainer is started by torchrun in four processes and trains a small Llama under a plan. The
engine is a job of its own, with the same Llama in bfloat16, and generates all the time. They meet
by a store. After every step the trainer publishes its weights; the engine takes the latest version
between two tokens.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from crossmesh.torch import Publisher, Subscriber

LENGTH, BATCH, STEPS = 32, 16, 10
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
CONFIG = transformers.LlamaConfig(vocab_size=256, **SIZES, **HEADS, tie_word_embeddings=False)


def main():
    """Start both jobs, and the store by which they meet."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    trainer = [*torchrun, "--nproc-per-node", "4", __file__, "trainer", str(store.port)]
    engine = [sys.executable, __file__, "engine", str(store.port)]
    jobs = [subprocess.Popen(command) for command in (trainer, engine)]
    codes = [job.wait() for job in jobs]
    sys.exit(any(codes))


def train(store):
    """One of the processes of the trainer."""
    import frontends.torch as mw
    import numpy as np
    from costmodel import Cluster

    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    library = Path(sysconfig.get_paths()["stdlib"])
    text = np.frombuffer(b"".join(p.read_bytes() for p in sorted(library.glob("*.py"))), np.uint8)
    pieces = np.lib.stride_tricks.sliding_window_view(text, LENGTH)
    draw = np.random.default_rng(0)

    def next_batch():
        rows = torch.tensor(pieces[draw.integers(len(pieces), size=BATCH)].astype(np.int64))
        return {"input_ids": rows, "labels": rows}

    cluster = Cluster.preset("two-hosts").resized(devices_per_host=2)
    step = mw.parallelize(
        model, optimizer, lambda model, batch: model(**batch).loss, next_batch(), cluster=cluster
    )
    shards = step.state_dict(full_state_dict=False)["model"]
    with Publisher(shards, store) as publisher:
        publisher.wait_for(replicas=1)
        for _ in range(STEPS):
            loss = float(step(next_batch()))
            sent = publisher.publish(step.state_dict(full_state_dict=False)["model"])
            if publisher.is_leader:
                print(f"loss {loss:.3f}, published version {sent.version}", flush=True)
        assert sent.wait() == ("engine",)


def generate(store):
    """The engine."""
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(CONFIG).to(torch.bfloat16).eval()
    prompt = torch.tensor([list(b"def main(")])
    with Subscriber(model, store) as weights:
        while weights.version < STEPS:
            weights.wait(weights.version + 1)
            version = weights.apply()
            tokens = model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
            print(f"version {version}: {bytes(tokens[0].tolist())!r}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    role, port = sys.argv[1:]
    meeting = dist.TCPStore("127.0.0.1", int(port), is_master=False)
    train(meeting) if role == "trainer" else generate(meeting)
