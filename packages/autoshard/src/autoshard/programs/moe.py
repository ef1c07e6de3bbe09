"""A training step of a mixture of experts: a router sends each token to the experts it picks."""

from __future__ import annotations

from autoshard.graph.graph import Graph
from autoshard.programs.pieces import attention, causal_mask, cross_entropy, layer_norm, softmax
from autoshard.programs.program import Optimizer, StepBuilder


def moe_step(
    *,
    n_layers: int,
    batch: int,
    length: int,
    width: int,
    heads: int,
    experts: int,
    capacity: int,
    hidden: int,
    vocabulary: int,
    microbatches: int = 1,
    dtype: str = "float32",
    optimizer: Optimizer = "adam",
) -> Graph:
    """A training step of a Transformer whose MLPs are mixtures of experts.

    GShard's top-2 gating (Lepikhin et al., 2020, algorithm 1), where each sequence is a group. Its
    load-balancing loss and its random skipping of second experts are left out.

    Args:
        n_layers: Layers, each of attention and a mixture of experts.
        batch: Sequences in a microbatch.
        length: Tokens in a sequence.
        width: Width of the model.
        heads: Heads of attention.
        experts: Experts in each layer.
        capacity: The most tokens of a sequence that an expert takes; it drops the others.
        hidden: Width inside an expert.
        vocabulary: Size of the vocabulary.
        microbatches: Runs of forward and backward in a step.
        dtype: The dtype of every floating-point value.
        optimizer: The optimizer that updates the parameters.
    """
    p = StepBuilder(microbatches=microbatches, dtype=dtype)
    ids, targets = (p.input(name, batch, length, dtype="int32") for name in ("ids", "targets"))
    x = p.lookup(p.parameter("embedding", vocabulary, width), ids)
    mask = causal_mask(p, length)
    for layer in range(n_layers):
        h = layer_norm(p, x, f"{layer}_norm1")
        x = p.add(x, attention(p, h, mask, f"{layer}", heads))
        h = layer_norm(p, x, f"{layer}_norm2")
        x = p.add(x, mixture(p, h, f"{layer}", experts, capacity, hidden))
    logits = p.einsum("btd,vd->btv", layer_norm(p, x, "last"), "embedding")
    return p.finish(cross_entropy(p, logits, targets), optimizer)


def mixture(p: StepBuilder, x: str, name: str, experts: int, capacity: int, hidden: int) -> str:
    """Dispatch tokens x (g, s, m) to experts, run these, and combine their results.

    If groups g and experts e are split over the same devices, the conversion of (e, g, c, m)
    between the two splits is the all-to-all of GShard (section 3.2).
    """
    width = p.shape(x)[-1]
    combine = router(p, x, name, experts, capacity)
    dispatch = p.pointwise("gt_const", (), combine)
    inside = p.einsum("gsec,gsm->egcm", dispatch, x)
    inside = p.einsum("egcm,emh->egch", inside, p.parameter(f"{name}_up", experts, width, hidden))
    inside = p.unary("relu", inside)
    inside = p.einsum("egch,ehm->egcm", inside, p.parameter(f"{name}_down", experts, hidden, width))
    return p.einsum("gsec,egcm->gsm", combine, inside)


def router(p: StepBuilder, x: str, name: str, experts: int, capacity: int) -> str:
    """The weight of each token in each slot of each expert, shape (g, s, e, c).

    The first choices of all tokens get their slots before the second choices.
    """
    groups, tokens, width = p.shape(x)
    each, slots = (groups, tokens, experts), (groups, tokens, capacity)
    gates = softmax(p, p.einsum("gsm,me->gse", x, p.parameter(f"{name}_router", width, experts)))

    def choose(left: str, earlier: str | None) -> tuple[str, str]:
        """The expert of each token, one-hot (g, s, e), and the token's weights (g, s, e, c)."""
        expert = p.apply("argmax", each[:2], left, dtype="int32", dims=(2,))
        chosen = p.apply("one_hot", each, expert)
        before = p.apply("cumsum", each, chosen, dim=1)
        if earlier is not None:
            before = p.add(before, p.reduce(earlier, 1))
        position = p.reshape(p.reduce(p.mul(before, chosen), 2), *each[:2])
        slot = p.apply("one_hot", slots, position)
        weight = p.reduce(p.mul(gates, chosen), 2)
        return chosen, p.einsum("gse,gsc->gsec", p.mul(chosen, weight), slot)

    first, combine = choose(gates, None)
    _, second = choose(p.pointwise("select_n", (), gates, first), first)
    return p.add(combine, second)
