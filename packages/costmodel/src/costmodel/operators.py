"""Work of single operators: how much they compute, and the least that they move.

FLOP: a multiply-add counts as two, any other arithmetic function (a division, an exponential, a
maximum, a square root) as one. Bytes: every operand is read once and every result is written once,
whatever the caches do. So a time from these is a lower bound up to the device's efficiency; data
that do not fit on the chip and are read again take additional time.

Every argument is a number or an array of numbers, and arrays broadcast: the work of a million
matrix products is one call. An operator whose result is empty has no work.

Operators that mostly move bytes are in `costmodel.memory_bound`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.base.checks import Quantity, checked, counts, plain
from costmodel.base.dtype import itemsize_bytes
from costmodel.errors import QuantityError, shown
from costmodel.hardware.device import Device, operator_time


@dataclass(frozen=True, slots=True)
class Work:
    """What one run of an operator computes and moves; with arrays, of each of many operators."""

    flops: Quantity
    """Floating-point operations."""
    n_bytes: Quantity
    """Bytes read and written."""
    dtype: str
    """Dtype of the arithmetic, by its numpy name; it selects the device's peak."""

    @classmethod
    def from_elements(
        cls, flops: Quantity, n_elements: Quantity, dtype: str, *, n_results: Quantity
    ) -> Work:
        """The work of an operator that reads and writes `n_elements`; 0 if it has no results."""
        some = np.greater(n_results, 0)
        return cls(plain(flops * some), plain(n_elements * itemsize_bytes(dtype) * some), dtype)


def work_time(work: Work, device: Device) -> Quantity:
    """Seconds of the work on the device: `costmodel.operator_time`, which has the errors, too.

    Examples:
        >>> from costmodel import Cluster
        >>> device = Cluster.preset("two-hosts").device
        >>> work_time(matmul(1000, [0, 100, 1000], 1000, "float32"), device).round(6)
        array([0.      , 0.002001, 0.020001])
    """
    return operator_time(work.flops, work.n_bytes, device, work.dtype)


def matmul(m: Quantity, n: Quantity, k: Quantity, dtype: str, batch: Quantity = 1) -> Work:
    """Work of `batch` products of an `m x k` with a `k x n` matrix, each with its own operands.

    The gradient of the first operand is the work `(m, k, n)`, that of the second `(k, n, m)`; each
    is as large as the product itself. If all products share the second operand, they are one
    product with `batch * m` rows.

    Raises:
        QuantityError: A size is not a whole number >= 0.
        UnknownDtypeError: `dtype` is not the name of a dtype.

    Examples:
        >>> matmul(1024, 1024, 1024, "float32")
        Work(flops=2147483648.0, n_bytes=12582912.0, dtype='float32')
    """
    m, n, k, batch = counts(m=m, n=n, k=k, batch=batch)
    n_elements = batch * (m * k + k * n + m * n)
    return Work.from_elements(2 * batch * m * n * k, n_elements, dtype, n_results=batch * m * n)


def convolution(
    batch: Quantity,
    in_channels: Quantity,
    out_channels: Quantity,
    image: tuple[Quantity, ...],
    kernel: tuple[Quantity, ...],
    dtype: str,
    *,
    stride: Quantity | tuple[Quantity, ...] = 1,
    padding: Quantity | tuple[Quantity, ...] = 0,
    dilation: Quantity | tuple[Quantity, ...] = 1,
    groups: Quantity = 1,
) -> Work:
    """Work of a convolution; the gradient of its input and that of its weight are the same work.

    Each multiply-add involves an element of the input, one of the weight and one of the output.
    Whichever of these tensors is computed, it is written and the other two are read. A transposed
    convolution is the gradient of the input of a convolution whose image is the result of the
    transposed one.

    Multiplications with padding count, because libraries execute them (the convolution runs as a
    matrix product over a padded image), and so do elements of the input that a stride leaves out.

    Args:
        batch: Number of images.
        in_channels: Input channels of all groups together.
        out_channels: Output channels of all groups together.
        image: Height and width, or the sizes of all spatial dims.
        kernel: Sizes of the kernel, likewise.
        dtype: Dtype of all three tensors.
        stride: One number for all dims, or a tuple of one for each; likewise padding and dilation.
        padding: On each of the two sides.
        dilation: Distance of neighbouring taps.
        groups: Each connects its part of the input channels with its part of the output channels.

    Raises:
        QuantityError: A size is not a whole number in its range, a tuple does not have one entry
            for each dim, the groups do not divide the channels, or the kernel exceeds the padded
            image.
        UnknownDtypeError: `dtype` is not the name of a dtype.

    Examples:
        >>> convolution(32, 3, 64, (224, 224), (7, 7), "float16", stride=2, padding=3).flops
        7552892928.0

    Reference:
        Chetlur et al., "cuDNN: Efficient Primitives for Deep Learning", arXiv 1410.0759, 2014,
        section 3 (convolution as matrix product).
    """
    batch, channels, filters = counts(
        batch=batch, in_channels=in_channels, out_channels=out_channels
    )
    groups = checked("groups", groups, least=1, whole=True)
    if np.any(channels % groups) or np.any(filters % groups):
        raise QuantityError(
            "groups divide in_channels and out_channels; "
            f"got in_channels={in_channels}, out_channels={out_channels}, groups={groups}"
        )
    if not isinstance(image, tuple):  # a list would be ambiguous, because arrays are quantities
        raise QuantityError(f"image is a tuple of one size for each dim; got {shown(image)}")
    image = _per_dim("image", image, len(image), least=0)
    kernel = _per_dim("kernel", kernel, len(image), least=1)
    strides = _per_dim("stride", stride, len(image), least=1)
    paddings = _per_dim("padding", padding, len(image), least=0)
    dilations = _per_dim("dilation", dilation, len(image), least=1)
    n_inputs, n_outputs = batch * channels, batch * filters
    n_taps = channels / groups  # of one output element
    for size, taps, step, pad, gap in zip(image, kernel, strides, paddings, dilations, strict=True):
        room = size + 2 * pad - gap * (taps - 1) - 1
        if np.any(np.less(room, 0)):
            raise QuantityError(
                "a kernel fits into its padded image, dilation * (kernel - 1) + 1 <= image + "
                f"2 * padding; got kernel={taps}, dilation={gap}, image={size}, padding={pad}"
            )
        n_inputs = n_inputs * size
        n_taps = n_taps * taps
        n_outputs = n_outputs * (room // step + 1)
    n_elements = n_inputs + filters * n_taps + n_outputs
    return Work.from_elements(2 * n_outputs * n_taps, n_elements, dtype, n_results=n_outputs)


def attention(
    batch: Quantity,
    heads: Quantity,
    queries: Quantity,
    keys: Quantity,
    head_dim: Quantity,
    dtype: str,
    *,
    causal: bool,
    materialised: bool,
    kv_heads: Quantity | None = None,
    backward: bool = False,
) -> Work:
    """Work of scaled dot-product attention `softmax(Q K^T) V` or its gradients, no projections.

    FLOP are those of the matrix products, as in the references. If the scores are not materialised,
    as in FlashAttention, they stay on the chip, and masked pairs are not computed: with a causal
    mask and `s` queries and keys, `s (s + 1) / 2` pairs are. If they are materialised, all scores
    are computed and then masked, and the matrices of scores and of their softmaxes are written and
    read.

    Forward has two products. Backward has four, from the stored softmaxes, or five if the scores
    are first computed again from queries and keys.

    Args:
        batch: Number of sequences.
        heads: Heads of the queries.
        queries: Number of queries in a sequence.
        keys: Number of keys and values in a sequence.
        head_dim: Size of one head's query, key and value.
        dtype: Dtype of all tensors.
        causal: Whether the last query sees all keys, and each earlier query one key less.
        materialised: Whether the scores are a tensor in memory.
        kv_heads: Heads of keys and values, each shared by the same number of query heads; None for
            as many as `heads`.
        backward: Whether to count the gradients of queries, keys and values instead of forward.

    Raises:
        QuantityError: A size is not a whole number in its range, or `kv_heads` does not divide
            `heads`.
        UnknownDtypeError: `dtype` is not the name of a dtype.

    Examples:
        >>> attention(1, 16, 2048, 2048, 128, "bfloat16", causal=True, materialised=False)
        Work(flops=17188257792.0, n_bytes=33554432.0, dtype='bfloat16')

    Reference:
        Dao et al., "FlashAttention", NeurIPS 2022: the traffic of materialised scores, forward in
        algorithm 0, backward in algorithm 3 (appendix B). Dao, "FlashAttention-2", arXiv
        2307.08691, section 4.1: `4 s^2 d` FLOP a head, half of it if causal, 2.5 times as many
        backward; we count the diagonal, which a half leaves out.
    """
    batch, heads, queries, keys, head_dim = counts(
        batch=batch, heads=heads, queries=queries, keys=keys, head_dim=head_dim
    )
    kv = heads if kv_heads is None else checked("kv_heads", kv_heads, least=1, whole=True)
    if kv_heads is not None and np.any(heads % kv):
        raise QuantityError(f"kv_heads divides heads; got heads={heads}, kv_heads={kv_heads}")

    scores = batch * heads * queries * keys
    pairs = scores
    if causal and not materialised:
        seeing = np.minimum(queries, keys)  # any earlier queries see no key
        pairs = batch * heads * seeing * (keys - (seeing - 1) / 2)
    per_query = batch * heads * queries * head_dim
    per_key = batch * kv * keys * head_dim
    if not backward:
        n_products = 2
        n_elements = 2 * per_query + 2 * per_key  # Q and the result; K, V
        n_scores = 4  # the scores and their softmaxes, written and read
    else:
        n_products = 4 if materialised else 5
        # Per query: Q, the gradient of Q, and the gradient of the result, which either two products
        # read, or one reads together with the result. Per key: K, V and their gradients.
        n_elements = 4 * per_query + 4 * per_key
        # P is read twice, its gradient written and read, that of the scores written and read twice.
        n_scores = 7
    if materialised:
        n_elements = n_elements + n_scores * scores
    return Work.from_elements(
        n_products * 2 * pairs * head_dim, n_elements, dtype, n_results=per_query
    )


def _per_dim(
    name: str, value: Quantity | tuple[Quantity, ...], n_dims: int, least: float
) -> tuple[Quantity, ...]:
    values = value if isinstance(value, tuple) else (value,) * n_dims
    if len(values) != n_dims:
        raise QuantityError(
            f"{name} is one number, or a tuple of one for each of the image's {n_dims} dims; "
            f"got {value!r}"
        )
    return tuple(checked(name, one, least=least, whole=True) for one in values)
