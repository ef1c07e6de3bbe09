"""What does a compiled step of our PyTorch runtime cost beside `torch.compile` by hand?

Baseline: the same model, loss and AdamW on one device, with the model and `optimizer.step`
compiled by `torch.compile`. Ours is `parallelize(backend="inductor")` for one device. Beside both
run the eager step, and ours with `backend="eager"`. Models: a Llama of 8 layers at width 512, GPT-2
small, and a toy of 4 layers at width 32, which is nothing but overhead. A round is four steps of
each in turns, so that all see the same machine; the columns have medians of one step. Losses of
all are equal to 1e-5. The time to compile, from an empty cache on disk, is that of the first four
steps.

Seconds are of wall time; all use both cores.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import frontends.torch as mw
import pytest
import torch
import transformers
from costmodel import Cluster
from frontends.torch.run import compiled

pytestmark = [  # what torch.compile says about torch
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
ALONE = Cluster.preset("virtual-cpu").resized(devices_per_host=1)
LLAMA = {
    "vocab_size": 2048,
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}
TOY = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
MODELS: dict[str, tuple[Callable[[int], Any], int, tuple[int, int]]] = {
    "llama": (
        lambda n: transformers.LlamaConfig(num_hidden_layers=n, use_cache=False, **LLAMA),
        8,
        (8, 128),
    ),
    "gpt2": (lambda n: transformers.GPT2Config(n_layer=n, use_cache=False), 12, (2, 128)),
    "toy": (
        lambda n: transformers.LlamaConfig(num_hidden_layers=n, use_cache=False, **TOY),
        4,
        (4, 16),
    ),
}
"""Configuration by number of layers, number of layers, and shape of the tokens."""

Step = Callable[[], torch.Tensor]


def loss_of(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    return model(input_ids=tokens, labels=tokens).loss


def made(config: Any) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()  # without dropout
    return model, torch.optim.AdamW(model.parameters(), 1e-4)


def by_hand(config: Any, tokens: torch.Tensor, is_compiled: bool) -> Step:
    model, optimizer = made(config)
    run, update = model, optimizer.step
    if is_compiled:
        run, update = torch.compile(model), torch.compile(optimizer.step)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(run, tokens)
        loss.backward()
        update()
        return loss.detach()

    return step


def ours(config: Any, tokens: torch.Tensor, backend: Any) -> Step:
    model, optimizer = made(config)
    step = mw.parallelize(model, optimizer, loss_of, cluster=ALONE, microbatches=1, backend=backend)
    return lambda: step(tokens)


@pytest.mark.nightly
@pytest.mark.parametrize("name", MODELS)
def test_step(benchmark, name):
    config_of, n_layers, shape = MODELS["toy" if benchmark.disabled else name]
    if benchmark.disabled:
        n_layers = 1
    config = config_of(n_layers)
    tokens = torch.randint(0, config.vocab_size, shape, generator=torch.Generator().manual_seed(1))
    steps = {
        "eager": by_hand(config, tokens, False),
        "by hand": by_hand(config, tokens, not benchmark.disabled),
        "our eager": ours(config, tokens, "eager"),
        "ours": ours(config, tokens, "inductor"),
    }
    losses = {way: [float(step()) for _ in range(4)] for way, step in steps.items()}
    for way in steps:
        assert losses[way] == pytest.approx(losses["eager"], rel=1e-5)
    seconds: dict[str, list[float]] = {way: [] for way in steps}

    def one_turn() -> None:
        for way, step in steps.items():
            step()  # after another model's step it finds nothing in the caches
            for _ in range(4):
                start_s = time.perf_counter()
                step()
                seconds[way].append(time.perf_counter() - start_s)

    benchmark.pedantic(one_turn, rounds=5)
    if benchmark.disabled:
        return
    medians = {way: statistics.median(taken_s) for way, taken_s in seconds.items()}
    for way, median_s in medians.items():
        benchmark.extra_info[way] = f"{median_s * 1e3:.1f} ms"
    benchmark.extra_info["ours beside by hand"] = (
        f"{medians['ours'] / medians['by hand']:.3f} times"
    )
    in_turn = medians["our eager"] / medians["eager"]
    benchmark.extra_info["our eager beside eager"] = f"{in_turn:.3f} times"


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["by hand", "ours"])
def test_time_to_compile(benchmark, way):
    """The first four steps from an empty cache on disk, for 12 layers and for one."""
    from torch._inductor.utils import fresh_cache

    config_of, _, shape = MODELS["toy" if benchmark.disabled else "llama"]
    tokens = torch.zeros(shape, dtype=torch.long)

    def first_steps(n_layers: int) -> None:
        config = config_of(n_layers)
        if not benchmark.disabled:
            torch._dynamo.reset()
            compiled._functions.clear()
        with fresh_cache():
            if way == "ours":
                step = ours(config, tokens, "inductor")
            else:
                step = by_hand(config, tokens, not benchmark.disabled)
            for _ in range(4):
                step()

    start_s = time.perf_counter()
    first_steps(1)
    one_s = time.perf_counter() - start_s
    benchmark.pedantic(first_steps, args=(1 if benchmark.disabled else 12,), rounds=1)
    if not benchmark.disabled:
        benchmark.extra_info["of one layer"] = f"{one_s:.0f} s"
        ratio = benchmark.stats.stats.median / one_s
        benchmark.extra_info["12 layers beside one"] = f"{ratio:.2f} times"
