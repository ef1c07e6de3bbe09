"""Bytes of activations that a Transformer layer keeps for its backward pass.

With `s` tokens in each of `b` sequences, hidden size `h`, `a` heads and `e` bytes per element, a
layer keeps (the masks of its dropouts take one byte per element)

    (4 e + 2) s b h     inputs of both layer norms, of the Q, K, V product, of the MLP; two masks
    12 e s b h          Q, K, V, the projection's input; GeLU's input and its result, 4 h wide
    (2 e + 1) a s^2 b   softmaxes, their dropout's mask and result

which is 34 s b h + 5 a s^2 b bytes at 16 bits. Each of `t` tensor-parallel devices keeps a `t`-th
of the last two lines and, with sequence parallelism, of the first line, too. Selective
recomputation drops the last line, full recomputation everything but the layer's input.

Reference:
    Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", MLSys 2023
    (arXiv 2205.05198), sections 4.1, 4.2 and 5, Table 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.base.checks import count
from costmodel.base.dtype import itemsize_bytes
from costmodel.errors import UnknownNameError

_RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class ActivationBytes:
    """Bytes of one layer's activations of one microbatch on one device."""

    kept: int
    """Kept from forward to backward, for each microbatch in flight."""
    temporary: int
    """Recomputed in backward, in addition to `kept`; by one layer at a time, so once per device."""
    weight_gradient: int
    """Kept from the gradient of the input to that of the weights, if a schedule separates them."""


def transformer_layer_bytes(
    sequence: int,
    batch: int,
    hidden: int,
    heads: int,
    dtype: str,
    *,
    recompute: str,
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
) -> ActivationBytes:
    """Activations of one microbatch in a layer with attention, an MLP of `4 hidden`, and dropouts.

    Args:
        sequence: Number of tokens of a sequence.
        batch: Number of sequences of one microbatch on this device.
        hidden: Size of a token's vector.
        heads: Heads of the attention, of all tensor-parallel devices together.
        dtype: Dtype of all activations except the masks.
        recompute: "none"; "selective" for the attention's scores (FlashAttention keeps as much); or
            "full" for the whole layer from its input.
        tensor_parallel: Number of devices that share the layer.
        sequence_parallel: Whether these devices also share, along the sequence, the activations
            that tensor parallelism alone repeats on each.

    Returns:
        Bytes of the device with the largest shares.

    Raises:
        QuantityError: A size is not a whole number >= 1.
        UnknownNameError: `recompute` is not one of the three.
        UnknownDtypeError: `dtype` is not the name of a dtype.

    Examples:
        >>> gpt3 = (2048, 1, 12288, 96, "float16")
        >>> for recompute in ("none", "selective", "full"):
        ...     layer = transformer_layer_bytes(*gpt3, tensor_parallel=8, recompute=recompute)
        ...     print(f"{recompute}: {layer.kept / 2**20:.0f} MiB")
        none: 552 MiB
        selective: 312 MiB
        full: 48 MiB

    Reference:
        Korthikanti et al., Table 2. With sequence parallelism, the input that full recomputation
        keeps is shared as well; the table has this case only without sequence parallelism. On one
        device, `weight_gradient` is the 32 s b h of Qi et al., "Zero Bubble Pipeline Parallelism",
        ICLR 2024, Table 1: the inputs, and the gradients of the results, of the products with the
        four weights. Its split over devices is ours.
    """
    if recompute not in _RECOMPUTE:
        raise UnknownNameError(
            f"recompute is one of {', '.join(_RECOMPUTE)}; got {recompute!r}", recompute
        )
    s, b, h, a, t = (
        count(name, value, least=1)
        for name, value in (
            ("sequence", sequence),
            ("batch", batch),
            ("hidden", hidden),
            ("heads", heads),
            ("tensor_parallel", tensor_parallel),
        )
    )
    e = itemsize_bytes(dtype)
    whole = t if sequence_parallel else 1  # devices that share what tensor parallelism replicates

    layer_input = _share(e * s * b * h, whole)
    repeated = _share((4 * e + 2) * s * b * h, whole)
    split = _share(12 * e * s * b * h, t)
    scores = _share((2 * e + 1) * a * s * s * b, t)
    everything = repeated + split + scores
    kept = {"none": everything, "selective": repeated + split, "full": layer_input}[recompute]
    # Replicated: inputs of Q, K, V and of the MLP, gradients of the results of projection and MLP.
    weight_gradient = _share(4 * e * s * b * h, whole) + _share(12 * e * s * b * h, t)
    return ActivationBytes(kept, everything - kept, weight_gradient)


def _share(n_bytes: float, n_devices: int) -> int:
    """The largest of `n_devices` equal parts."""
    return int(-(-n_bytes // n_devices))
