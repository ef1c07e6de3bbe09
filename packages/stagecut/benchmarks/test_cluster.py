"""How many operators can be clustered into layers, and what does a repeated block take to find?

Baseline: the dynamic program of Alpa's Eq. 6 over all pairs of cuts whose FLOPs are within the
limit, O(K^2) steps over all numbers of layers at once in numpy; it finds the same layers. All are
clustered into 96 layers with delta = 0.5; with 4 if one operator is that heavy.

- transformer: blocks of 150 operators, six of which have nearly all FLOPs; values are read up to 75
  operators later; a block hands on less than its operators do, so layers end with blocks.
- chain: equal operators, equal values; every cut is as good as any other.
- heavy: the same, but for an operator as heavy as five layers; the others cannot be equal to it.
- random: FLOPs, bytes and readers at random, so that the limit on the bytes makes layers unequal.

Not shown: memory, which is 16 bytes for each read of a value and each bit of the number of
operators, and the time to trace so large a model.
"""

import random
from itertools import pairwise

import numpy as np
import pytest
from stagecut import Boundary, cluster_operators, repeated_blocks

N_LAYERS = 96
BLOCK = 150


def transformer(n):
    heavy = {BLOCK * k // 7: 1e9 * (1 + k % 3) for k in range(1, 7)}
    flops = [heavy.get(k % BLOCK, 1e5 * (k % 5)) for k in range(n)]
    values = []
    for k in range(n - 1):
        at = k % BLOCK
        later = {1: True, 11: at % 10 == 0, BLOCK // 2: at == BLOCK - 1}
        readers = tuple(k + d for d, is_read in later.items() if is_read and k + d < n)
        values.append(Boundary(k, ((at < BLOCK - 1) + 1) << 20, readers))
    return flops, values


def chain(n):
    return [1e9] * n, [Boundary(k, 1 << 20, (k + 1,)) for k in range(n - 1)]


def heavy(n):
    flops, values = chain(n)
    flops[n * 2 // 3] *= 5 * n // N_LAYERS
    return flops, values


def unequal(n):
    draw = random.Random(0)
    flops = [draw.lognormvariate(20, 1) for _ in range(n)]
    values = []
    for k in range(n - 1):
        readers = {min(n - 1, k + 1 + int(draw.expovariate(1 / 20))) for _ in range(2)}
        values.append(Boundary(k, draw.randrange(1 << 20), tuple(sorted(readers))))
    return flops, values


MODELS = {"transformer": transformer, "chain": chain, "heavy": heavy, "random": unequal}
DELTAS = {"transformer": 0.5, "chain": 0.5, "heavy": 4.0, "random": 0.5}


def over_all_pairs(flops, values, n_layers, delta):
    """Eq. 6: G(k, r) for all r at once, first over bytes and then over squares."""
    n = len(flops)
    done = np.concatenate(([0.0], np.cumsum(flops)))
    limit = (1 + delta) * done[-1] / n_layers * (1 + 1e-9)
    arrivals = [[] for _ in range(n)]
    for value in values:
        for before, reader in zip(
            (value.producer, *value.consumers), value.consumers, strict=False
        ):
            arrivals[reader].append((before + 1, value.n_bytes))

    def table(most_bytes):
        received = np.zeros(n)
        sums = np.full((n + 1, n_layers + 1), np.inf)
        firsts = np.zeros((n + 1, n_layers + 1), dtype=np.int64)
        sums[0, 0] = 0.0
        for last in range(n):
            for first, n_bytes in arrivals[last]:
                received[first : last + 1] += n_bytes
            start = int(np.searchsorted(done, done[last + 1] - limit))
            runs = slice(start, last + 1)
            if start > last:
                continue
            if most_bytes is None:
                ways = np.maximum(sums[runs, :-1], received[runs, None])
            else:
                squares = (done[last + 1] - done[runs]) ** 2
                squares[received[runs] > most_bytes] = np.inf
                ways = sums[runs, :-1] + squares[:, None]
            at = ways.argmin(axis=0)
            sums[last + 1, 1:] = ways[at, np.arange(n_layers)]
            firsts[last + 1, 1:] = start + at
        return sums, firsts

    _, firsts = table(table(None)[0][n, n_layers])
    edges = [n]
    for r in range(n_layers, 0, -1):
        edges.append(int(firsts[edges[-1], r]))
    edges.reverse()
    return tuple((first, end - 1) for first, end in pairwise(edges))


@pytest.mark.parametrize("n", [3_000, 10_000, pytest.param(100_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("model", MODELS)
def test_cluster_operators(benchmark, model, n):
    flops, values = MODELS[model](n)
    arguments = flops, values, N_LAYERS, DELTAS[model]

    layers = benchmark.pedantic(cluster_operators, arguments, rounds=5, warmup_rounds=1)

    assert [first for first, _ in layers[1:]] == [last + 1 for _, last in layers[:-1]]
    sizes = [last + 1 - first for first, last in layers]
    assert sum(sizes) == n
    if model == "transformer" and n >= N_LAYERS * BLOCK:
        assert all(first % BLOCK == 0 for first, _ in layers)
    if model == "chain":
        assert max(sizes) - min(sizes) <= 1
    if n < 100_000:
        benchmark.extra_info["baseline"] = f"test_all_pairs[{model}-{n}]"


@pytest.mark.parametrize("n", [3_000, 10_000])
@pytest.mark.parametrize("model", MODELS)
def test_all_pairs(benchmark, model, n):
    flops, values = MODELS[model](n)
    arguments = flops, values, N_LAYERS, DELTAS[model]

    layers = benchmark.pedantic(over_all_pairs, arguments, rounds=1)

    assert sum_of_squares(flops, layers) == pytest.approx(
        sum_of_squares(flops, cluster_operators(*arguments)), rel=1e-9
    )


def sum_of_squares(flops, layers):
    return sum(sum(flops[first : last + 1]) ** 2 for first, last in layers)


@pytest.mark.parametrize("n", [1_000, 10_000, 100_000])
def test_repeated_blocks(benchmark, n):
    draw = random.Random(0)
    block = [draw.randrange(30) for _ in range(BLOCK)]
    copies = (n - 20) // BLOCK
    signatures = ["head"] * 7 + block * copies + ["tail"] * (n - 7 - copies * BLOCK)

    layers = benchmark.pedantic(repeated_blocks, (signatures,), rounds=5, warmup_rounds=1)

    assert layers[1:-1] == tuple((7 + BLOCK * k, 6 + BLOCK * (k + 1)) for k in range(copies))
