"""Rounds and bytes of our algorithms of collectives among devices that all have the same link.

There are three families. In a *ring*, or a chain, every device sends to the next one. In a *tree*,
a device's data go to all others, or all addends go to one device, along a binomial tree in about
`log2 p` rounds: the binomial algorithms, recursive doubling and halving, Rabenseifner's and
Bruck's. *Direct* algorithms send messages straight from the device that holds the data to the one
that needs them.

Let `p` devices each send one message at a time, in `alpha + n beta`, and let `k = floor(log2 p)`,
`P = 2^k`. Messages are multiples of `alpha`, volume is in multiples of `n beta`, with `n` as in
`costmodel.time.ring`:

    collective      family  algorithm             messages          volume
    all-gather      ring    ring                  p - 1             (p - 1)/p
                    tree    bruck                 ceil(log2 p)      (p - 1)/p
    reduce-scatter  ring    ring                  p - 1             (p - 1)/p
                    tree    recursive halving     k, else k + 2     (p - 1)/p, else see `_halving`
    all-reduce      ring    ring                  2p - 1            2 (p - 1)/p
                    tree    recursive doubling    k, else k + 2     k, else k + 2
                    tree    rabenseifner          2k, else 2k + 2   2 (P - 1)/P, else 2 more
    all-to-all      direct  pairwise              p - 1             (p - 1)/p
                    tree    bruck                 ceil(log2 p)      binary ones in 0..p-1, over p
    broadcast       ring    chain of K chunks     p - 2 + K         (p - 2 + K)/K
                    tree    binomial              ceil(log2 p)      ceil(log2 p)
                    tree    scatter, all-gather   2 ceil(log2 p)    2 (p - 1)/p
    scatter         tree    binomial              ceil(log2 p)      (p - 1)/p
    permute         direct  pairwise              1                 1
    point-to-point  direct  message               1                 1

"else" is for groups whose size is not a power of two. There the `p - P` extra devices first give
their addend to a neighbour, which works for both, and at the end get its result: two messages more.

The arithmetic of reductions is left out, as in AutoDDL, section 3.1.

Reference:
    Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH",
    IJHPCA 19(1), 2005: all but the chain. The paper says that recursive halving in a group whose
    size is not a power of two sends about 2n; we count what the busiest device sends. The
    all-gather after the scatter of a broadcast is Bruck's here, and a ring in the paper. Chain:
    cross-mesh resharding, section 3.1.
"""

from __future__ import annotations

from functools import partial

from costmodel.time.algorithm import AlgorithmEntry
from costmodel.time.ring import Rounds, chain, message, once_around, swap, twice_around


def _ceil_log2(n: int) -> int:
    return (n - 1).bit_length()


def _bruck_all_gather(n: int) -> Rounds:
    return Rounds(_ceil_log2(n), (n - 1) / n)


def _bruck_all_to_all(n: int) -> Rounds:
    """In round `j` a device sends the blocks that still have to go `2^j` devices further."""
    blocks = 0
    for j in range(_ceil_log2(n)):
        period = 2 << j
        blocks += n // period * (period // 2) + max(0, n % period - period // 2)
    return Rounds(_ceil_log2(n), blocks / n)


def _halving(n: int) -> Rounds:
    """Recursive halving; the first `r = n - P` of the `P` active devices reduce two blocks each.

    The halves that are exchanged in round `j` have different numbers of blocks. The larger half, of
    `P / 2^j` devices, has two blocks for each of its devices that is among the first `r`.
    """
    k = n.bit_length() - 1
    extra = n - 2**k
    widths = [2**k >> j for j in range(1, k + 1)]
    blocks = sum(width + min(extra, width) for width in widths)
    return Rounds(k + 2 * (extra > 0), blocks / n, (extra > 0) * (1 + 1 / n))


def _doubling(n: int) -> Rounds:
    k = n.bit_length() - 1
    folds = 2 * (n > 2**k)
    return Rounds(k + folds, k, folds)


def _rabenseifner(n: int) -> Rounds:
    k = n.bit_length() - 1
    folds = 2 * (n > 2**k)
    return Rounds(2 * k + folds, 2 * (2**k - 1) / 2**k, folds)


def _binomial_broadcast(n: int) -> Rounds:
    return Rounds(_ceil_log2(n), 0, _ceil_log2(n))


def _binomial_scatter(n: int) -> Rounds:
    return Rounds(_ceil_log2(n), 0, (n - 1) / n)


def _scatter_and_gather(n: int) -> Rounds:
    return Rounds(2 * _ceil_log2(n), (n - 1) / n, (n - 1) / n)


# The best number of chunks balances a part of the time that grows with it and a part that falls.
# Within a factor sqrt(2) of the best number, their sum is at most 6.1 % above the minimum.
_CHAINS = tuple(
    AlgorithmEntry(
        "broadcast", f"chain of {n_chunks} chunks", "ring", partial(chain, n_chunks=n_chunks)
    )
    for n_chunks in (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
)

ENTRIES = (
    AlgorithmEntry("all_gather", "ring", "ring", once_around),
    AlgorithmEntry("reduce_scatter", "ring", "ring", once_around),
    AlgorithmEntry("all_reduce", "ring", "ring", twice_around),
    *_CHAINS,
    AlgorithmEntry("all_to_all", "pairwise", "direct", once_around),
    AlgorithmEntry("permute", "pairwise", "direct", swap),
    AlgorithmEntry("point_to_point", "message", "direct", message),
    AlgorithmEntry("all_gather", "bruck", "tree", _bruck_all_gather),
    AlgorithmEntry("reduce_scatter", "recursive halving", "tree", _halving),
    AlgorithmEntry("all_reduce", "recursive doubling", "tree", _doubling),
    AlgorithmEntry("all_reduce", "rabenseifner", "tree", _rabenseifner),
    AlgorithmEntry("all_to_all", "bruck", "tree", _bruck_all_to_all),
    AlgorithmEntry("broadcast", "binomial", "tree", _binomial_broadcast),
    AlgorithmEntry("broadcast", "scatter and all-gather", "tree", _scatter_and_gather),
    AlgorithmEntry("scatter", "binomial", "tree", _binomial_scatter),
)
"""Our algorithms; of equally fast ones the first is chosen."""
