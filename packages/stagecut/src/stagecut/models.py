"""Published models to plan for without tracing: the operators of GPT, GShard MoE and Wide-ResNet.

The sizes are those of Alpa (OSDI 2022), tables 6 to 8 in appendix B. An operator says what it
computes, reads, keeps and exchanges for *one sample*, which is a sequence or an image.
`stagecut.profiles` computes how long this takes on a cluster.

Transformers use the tensor parallelism of Megatron: the first product of the attention and of the
MLP is split by its columns, and the second by its rows, so each such pair needs an all-reduce of
its result in forward and of the gradient of its input in backward (Shoeybi et al., arXiv
1909.08053, section 3). A device holds its share of the output channels of a convolution, gathers
the convolution's input, and takes part in a reduce-scatter of the input's gradient. An all-reduce
is a reduce-scatter and an all-gather, and counts twice.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

from costmodel.operators import Work, convolution

from stagecut.base.edges import Boundary
from stagecut.errors import UnknownNameError


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator; all amounts but `parameters` are for the forward pass of one sample."""

    name: str
    flops: float
    """Floating-point operations; a multiply-add counts as two."""
    moved_bytes: float
    """Activations read and written; its parameters come in addition."""
    result_bytes: int
    """Bytes of the result, which it passes on and keeps for its backward pass."""
    reads: tuple[int, ...] = ()
    """The operators whose results it reads; empty if it reads an input of the model."""
    parameters: int = 0
    """Number of trained parameters, over all experts."""
    is_split: bool = False
    """Whether tensor-parallel devices split the work and the parameters; otherwise each device does
    all of the work."""
    result_is_split: bool = False
    """Whether they also split the result."""
    forward_gathers_bytes: int = 0
    """Bytes of the all-gathers and reduce-scatters among them in forward."""
    backward_gathers_bytes: int = 0
    """Bytes of the all-gathers and reduce-scatters among them in backward."""
    n_experts: int = 1
    """Experts that its parameters make up; data-parallel devices split these among them."""
    exchanged_bytes: int = 0
    """Bytes that data-parallel devices exchange so that tokens reach their experts."""


@dataclass(frozen=True, slots=True)
class Model:
    """The operators of a model in program order, and how Alpa's paper trained it."""

    name: str
    operators: tuple[Operator, ...]
    n_blocks: int
    """Repeated blocks: transformer layers or residual blocks. It is a good number of layers to
    start with."""
    batch: int
    """Samples of a step (Alpa, table 4)."""
    n_microbatches: int
    """Microbatches of a step, as Alpa ran it: benchmark/alpa/suite_*.py of its repository."""
    dtype: str
    """Data type of activations, and of the weights in products."""

    @property
    def boundaries(self) -> tuple[Boundary, ...]:
        """The values between operators, with their bytes for one sample."""
        readers: dict[int, list[int]] = {}
        for index, operator in enumerate(self.operators):
            for source in operator.reads:
                readers.setdefault(source, []).append(index)
        return tuple(
            Boundary(source, self.operators[source].result_bytes, tuple(consumers))
            for source, consumers in sorted(readers.items())
        )

    @property
    def flops(self) -> tuple[float, ...]:
        """FLOPs of each operator in the forward pass of one sample."""
        return tuple(operator.flops for operator in self.operators)


# name: hidden, blocks, heads; microbatches (Alpa, table 6; suite_auto_gpt.py, perf_test_suite).
_GPT = {
    "350m": (1024, 24, 16, 512),
    "1.3b": (2048, 24, 32, 128),
    "2.6b": (2560, 32, 32, 128),
    "6.7b": (4096, 32, 32, 64),
    "15b": (5120, 48, 32, 128),
    "39b": (8192, 48, 64, 1024),
}
# name: hidden, blocks, heads, experts; microbatches (Alpa, table 7; suite_auto_moe.py).
_MOE = {
    "380m": (768, 8, 16, 8, 512),
    "1.3b": (768, 16, 16, 16, 32),
    "2.4b": (1024, 16, 16, 16, 32),
    "10b": (1536, 16, 16, 32, 16),
    "27b": (2048, 16, 32, 48, 128),
    "70b": (2048, 32, 32, 64, 64),
}
# name: convolutions, base channels, width factor, batch, microbatches (Alpa, table 8;
# suite_wresnet.py, perf_test_auto_suite). 1,536 images do not divide into the 38 of "13b".
_WIDE_RESNET = {
    "250m": (50, 160, 2, 1536, 24),
    "1b": (50, 320, 2, 1536, 24),
    "2b": (50, 448, 2, 1536, 24),
    "4b": (50, 640, 2, 1536, 32),
    "6.8b": (50, 320, 16, 1536, 32),
    "13b": (101, 320, 16, 1520, 38),
}
_RESNET_BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}  # He et al., CVPR 2016, table 1
_SEQUENCE, _GPT_WORDS, _MOE_WORDS, _IMAGE, _CLASSES = 1024, 51200, 32000, 224, 1024  # appendix B
_HALF, _SINGLE = 2, 4  # bytes of float16 and float32, the precisions of table 4


@cache
def model(name: str) -> Model:
    """The model with a name of `model_names()`.

    Raises:
        UnknownNameError: There is no model of this name.

    Examples:
        >>> gpt = model("gpt-39b")
        >>> len(gpt.operators), gpt.n_blocks
        (579, 48)
        >>> f"{sum(each.parameters for each in gpt.operators) / 1e9:.1f}"
        '39.5'
    """
    makers = _makers()
    if name.lower() not in makers:
        raise UnknownNameError(
            f"a model is one of {', '.join(makers)}; got {name!r}; to plan for a model of your "
            "own, call plan_stages with its costs"
        )
    return makers[name.lower()]()


def model_names() -> tuple[str, ...]:
    """The names of the models that `model` knows, the smallest of each family first."""
    return tuple(_makers())


def _makers() -> Mapping[str, Callable[[], Model]]:
    return (
        {f"gpt-{size}": partial(_gpt, size) for size in _GPT}
        | {f"moe-{size}": partial(_moe, size) for size in _MOE}
        | {f"wide-resnet-{size}": partial(_wide_resnet, size) for size in _WIDE_RESNET}
    )


def _gpt(size: str) -> Model:
    hidden, n_blocks, heads, n_microbatches = _GPT[size]
    return _transformer(f"gpt-{size}", hidden, n_blocks, heads, 4, (), _GPT_WORDS, n_microbatches)


def _moe(size: str) -> Model:
    # Every second MLP consists of experts. An MLP is 8 times as wide as the hidden size: if it were
    # 4 times as wide, the models would have two thirds of the parameters in table 7.
    hidden, n_blocks, heads, n_experts, n_microbatches = _MOE[size]
    experts = (1, n_experts)
    return _transformer(
        f"moe-{size}", hidden, n_blocks, heads, 8, experts, _MOE_WORDS, n_microbatches
    )


def _transformer(
    name: str,
    hidden: int,
    n_blocks: int,
    heads: int,
    widening: int,
    experts: tuple[int, ...],
    n_words: int,
    n_microbatches: int,
) -> Model:
    s, h, e = _SEQUENCE, hidden, _HALF
    operators: list[Operator] = []
    row = s * h * e  # bytes of a hidden state

    def add(operator: Operator) -> int:
        operators.append(operator)
        return len(operators) - 1

    def product(
        what: str, source: int, n_in: int, n_out: int, *, columns: bool, n_experts: int = 1
    ) -> int:
        """A weight times all tokens; with experts, each token goes to two (GShard, top-2)."""
        copies = 1 if n_experts == 1 else 2
        n_bytes_in, n_bytes_out = copies * s * n_in * e, copies * s * n_out * e
        return add(
            Operator(
                what,
                flops=2.0 * copies * s * n_in * n_out,
                moved_bytes=n_bytes_in + n_bytes_out,
                result_bytes=n_bytes_out,
                reads=(source,),
                parameters=n_experts * (n_in + 1) * n_out,
                is_split=True,
                result_is_split=columns,
                forward_gathers_bytes=0 if columns else 2 * n_bytes_out,
                backward_gathers_bytes=2 * n_bytes_in if columns else 0,
                n_experts=n_experts,
                exchanged_bytes=0 if n_experts == 1 else n_bytes_in if columns else n_bytes_out,
            )
        )

    def pointwise(what: str, sources: tuple[int, ...], width: int, *, split: bool = False) -> int:
        """An elementwise function; it counts 7 FLOPs, those of a normalization, which has most."""
        n = s * width
        moved = (len(sources) + 1) * n * e
        scales = 2 * width if what.endswith("norm") else 0
        return add(Operator(what, 7.0 * n, moved, n * e, sources, scales, split, split))

    table = n_words * h
    x = add(
        Operator(
            "embedding", 0.0, 2 * row, row, (), table + s * h, True, forward_gathers_bytes=2 * row
        )
    )
    for block in range(n_blocks):
        at = f"block {block} "
        n_experts = experts[block % len(experts)] if experts else 1
        y = pointwise(at + "norm", (x,), h)
        y = product(at + "qkv", y, h, 3 * h, columns=True)
        scores, flops = heads * s * s * e, 2.0 * s * s * h
        y = add(Operator(at + "scores", flops, 2 * row + scores, scores, (y,), 0, True, True))
        y = pointwise(at + "softmax", (y,), heads * s, split=True)
        y = add(Operator(at + "context", flops, 2 * row + scores, row, (y, y - 2), 0, True, True))
        y = product(at + "projection", y, h, h, columns=False)
        x = pointwise(at + "add", (x, y), h)
        y = pointwise(at + "norm", (x,), h)
        y = product(at + "mlp in", y, h, widening * h, columns=True, n_experts=n_experts)
        copies = 1 if n_experts == 1 else 2
        y = pointwise(at + "gelu", (y,), copies * widening * h, split=True)
        y = product(at + "mlp out", y, widening * h, h, columns=False, n_experts=n_experts)
        x = pointwise(at + "add", (x, y), h)
    x = pointwise("norm", (x,), h)
    # The embedding table again: if the first and the last layer are on different stages, each holds
    # a copy.
    product("logits", x, h, n_words, columns=True)
    return Model(name, tuple(operators), n_blocks, 1024, n_microbatches, "float16")


def _wide_resnet(size: str) -> Model:
    n_convolutions, base, width, batch, n_microbatches = _WIDE_RESNET[size]
    sizes = _RESNET_BLOCKS[n_convolutions]
    operators: list[Operator] = []
    e = _SINGLE

    def add(operator: Operator) -> int:
        operators.append(operator)
        return len(operators) - 1

    def convolve(
        what: str, source: int | None, channels: tuple[int, int], image: int, kernel: int, step: int
    ) -> int:
        n_in, n_out = channels
        work: Work = convolution(
            1, n_in, n_out, (image, image), (kernel, kernel), "float32",
            stride=step, padding=kernel // 2,
        )  # fmt: skip
        n_weights = n_in * n_out * kernel * kernel
        n_bytes_in, n_bytes_out = n_in * image**2 * e, n_out * (image // step) ** 2 * e
        return add(
            Operator(
                what,
                flops=float(work.flops),
                moved_bytes=n_bytes_in + n_bytes_out,
                result_bytes=n_bytes_out,
                reads=() if source is None else (source,),
                parameters=n_weights,
                is_split=True,
                result_is_split=True,
                forward_gathers_bytes=n_bytes_in,
                backward_gathers_bytes=0 if source is None else n_bytes_in,
            )
        )

    def pointwise(what: str, sources: tuple[int, ...], shrink: int = 1) -> int:
        n_bytes = operators[sources[0]].result_bytes
        moved = len(sources) * n_bytes + n_bytes // shrink
        flops = 7.0 * n_bytes / e
        return add(Operator(what, flops, moved, n_bytes // shrink, sources, 0, True, True))

    def normalised(what: str, y: int, *, activated: bool = True) -> int:
        y = pointwise(what + " norm", (y,))
        return pointwise(what + " relu", (y,)) if activated else y

    x = convolve("stem", None, (3, base), _IMAGE, 7, 2)
    x = pointwise("stem pool", (normalised("stem", x),), shrink=4)
    n_in, image = base, _IMAGE // 4
    strides = [
        2 if group and not block else 1 for group, n in enumerate(sizes) for block in range(n)
    ]
    filters = [base << group for group, n in enumerate(sizes) for _ in range(n)]
    for block, (step, f) in enumerate(zip(strides, filters, strict=True)):
        at = f"block {block} "
        y = convolve(at + "1x1", x, (n_in, f), image, 1, 1)
        y = convolve(at + "3x3", normalised(at, y), (f, f * width), image, 3, step)
        y = convolve(at + "1x1 out", normalised(at, y), (f * width, 4 * f), image // step, 1, 1)
        y = normalised(at, y, activated=False)
        if n_in != 4 * f or step > 1:
            x = convolve(at + "shortcut", x, (n_in, 4 * f), image, 1, step)
            x = normalised(at + "shortcut", x, activated=False)
        x = pointwise(at + "add", (x, y))
        n_in, image = 4 * f, image // step
    x = pointwise("mean", (x,), shrink=image**2)
    add(
        Operator(
            "classes", 2.0 * n_in * _CLASSES, (n_in + _CLASSES) * e, _CLASSES * e, (x,),
            (n_in + 1) * _CLASSES, True, True, n_in * e, n_in * e,
        )
    )  # fmt: skip
    return Model(
        f"wide-resnet-{size}", tuple(operators), sum(sizes), batch, n_microbatches, "float32"
    )
