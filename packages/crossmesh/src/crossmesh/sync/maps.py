"""Maps for engines that fuse what a trainer has apart, such as vLLM and SGLang.

Names are those of the public parameters of these engines and of the checkpoints of the models:
Llama, Qwen2 and Qwen3 (also with experts), Mixtral, DeepSeek-V2 and V3.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from crossmesh.base.whole import whole_number
from crossmesh.errors import PlanError
from crossmesh.sync.states import LocalParts
from crossmesh.sync.targets import WeightMap
from crossmesh.sync.views import DROPPED, LARGEST, Published, View, cat, stack

FUSED: Mapping[str, Sequence[str]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
}
"""The module of an engine, and the modules of the trainer that it has one after the other."""

WHOLE = frozenset({"fused_qkv_a_proj", "fused_qkv_a_proj_with_mqa"})
"""Fused modules that every rank has whole: projections to the latent space of DeepSeek."""

EXPERTS: Mapping[str, Sequence[tuple[str, ...]]] = {
    "w13_weight": (("gate_proj", "up_proj"), ("w1", "w3")),
    "w2_weight": (("down_proj",), ("w2",)),
}
"""The parameter of an engine with all experts, and the modules that each expert has of it."""

STACKED: Mapping[str, str] = {"w13_weight": "gate_up_proj", "w2_weight": "down_proj"}
"""The parameter of a trainer that has all experts, too, as in transformers 5."""

EXPERT_MODULES = (("block_sparse_moe", "mlp"), ("mlp", "block_sparse_moe"))
"""What an engine calls the module of Mixtral's experts, and what a trainer may call it:
transformers 5 has `mlp`, checkpoints and vLLM have `block_sparse_moe`."""

VOCABULARY = ("embed_tokens", "lm_head", "word_embeddings", "wte")
"""The modules whose rows an engine may pad with zeros."""

SCALES = ("_scale_inv", "_scale")
"""What the names of scales have behind those of the weights; both are multiplied with."""


def engine(
    rank: int = 0,
    size: int = 1,
    *,
    expert_rank: int = 0,
    expert_size: int = 1,
    block: tuple[int | None, int | None] = (128, 128),
) -> WeightMap:
    """A map for an engine with tensor parallelism, whose ranks each have equal parts.

    Which dim is cut follows from the shapes. So one map does for all models that use these names:

    ==============================  ===========================================================
    of the engine                   of the trainer
    ==============================  ===========================================================
    `qkv_proj`                      `q_proj`, `k_proj`, `v_proj`; keys and values are repeated
                                    where there are fewer heads than ranks
    `gate_up_proj`                  `gate_proj`, `up_proj`
    `fused_qkv_a_proj`              `q_a_proj`, `kv_a_proj_with_mqa`
    `experts.w13_weight`            `experts.N.gate_proj`, `.up_proj`; or `.w1`, `.w3`; or the
                                    stacked `experts.gate_up_proj`
    `experts.w2_weight`             `experts.N.down_proj`; or `.w2`; or `experts.down_proj`
    `lm_head`                       `embed_tokens`, if no head is published (tied weights)
    embeddings with more rows       zeros behind those that are published
    weights in int8 or float8       quantized; `weight_scale` or `weight_scale_inv` has the scales
    ==============================  ===========================================================

    Args:
        rank: The rank of the process among those with tensor parallelism.
        size: Their number.
        expert_rank: The rank among those that have different experts.
        expert_size: Their number; each has as many consecutive experts.
        block: The rows and columns of a weight that have a scale together, if the engine has
            weights in int8 or float8, and the trainer has not. None: all of them; so `(1, None)` is
            a scale for each row, and `(128, 128)` what DeepSeek-V3 has.

    Raises:
        PlanError: A rank is not below its size. When the map is used: a tensor of the engine comes
            from no published one that it knows, or has no shape that follows from it.
    """
    for what, index, n in (("rank", rank, size), ("expert_rank", expert_rank, expert_size)):
        if not 0 <= whole_number(what, index) < whole_number("a size", n):
            raise PlanError(f"a rank is from 0 to its size - 1; got {what}={index} of {n}")
    own_part = _OwnPart(rank, size)

    def weights(published: Published, own: Mapping[str, LocalParts]) -> dict[str, View]:
        views = {}
        for name, parts in own.items():
            source: Mapping[str, View] = published
            weight_name = name if name in published else _weight_of(name, own)
            weight = _known_as(weight_name, published)
            small = own[weight_name].dtype
            if small in LARGEST:
                source = _Quantized(published, small, block, scales=weight_name != name)
            view = _view(weight, parts.shape, source, own_part, (expert_rank, expert_size))
            _check_blocks(name, view, block)
            views[name] = view
        return views

    return weights


class _Quantized(Mapping[str, View]):
    """Published tensors in a smaller type, or their scales, whatever type they are published in."""

    def __init__(
        self,
        published: Published,
        dtype: str,
        block: tuple[int | None, int | None],
        *,
        scales: bool,
    ) -> None:
        self._published = published
        self._dtype = dtype
        self._block = block
        self._scales = scales

    def __getitem__(self, name: str) -> View:
        whole = self._published[name]
        if len(whole.shape) < len(self._block) or self._published.dtypes[name] == self._dtype:
            return whole
        outer = len(whole.shape) - len(self._block)  # dims of stacked experts
        sizes = [*[1] * outer, *self._block]
        block = [min(s or n, n) for s, n in zip(sizes, whole.shape, strict=True)]
        return whole.quantize(self._dtype, block)[self._scales]

    def __iter__(self) -> Iterator[str]:
        return iter(self._published)

    def __len__(self) -> int:
        return len(self._published)


def _check_blocks(name: str, view: View, block: tuple[int | None, int | None]) -> None:
    """Refuse quantized weights of which an engine would take another scale than theirs."""
    quantized = (read for read in view.reads if read.encoding.dtype and not read.encoding.scales)
    for read in quantized:
        for size, became, (start, _) in zip(block, read.dims[-2:], read.at[-2:], strict=True):
            first = start if became == DROPPED else read.to[became][0]
            if size and (start % size or first % size):
                raise PlanError(
                    "parts of quantized weights begin where a block does, so that an engine takes "
                    f"the scale of their block; got {name!r}, which begins at {start} of "
                    f"{read.source!r} and at {first} of its own, with blocks of {size}"
                )


def _known_as(name: str, published: Published) -> str:
    """The name with the module of experts as the trainer calls it, if that is another one."""
    for here, there in EXPERT_MODULES:
        known = any(f".{here}." in other for other in published)
        if f".{here}." in name and not known:
            return name.replace(f".{here}.", f".{there}.")
    return name


def _weight_of(name: str, own: Mapping[str, LocalParts]) -> str:
    """The weight in a small type that has these scales; the name itself if it is none of scales."""
    for ending in SCALES:
        weight = name.removesuffix(ending)
        if weight != name and weight in own and own[weight].dtype in LARGEST:
            return weight
    return name


class _OwnPart:
    """What a rank has of a tensor, as its shape says."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size

    def of(self, view: View, shape: tuple[int, ...], name: str) -> View:
        """The part of this shape: whole, or one of equal parts of one dim."""
        if view.shape == shape:
            return view
        if len(view.shape) == len(shape):
            differing = [d for d, n in enumerate(shape) if n != view.shape[d]]
            if len(differing) == 1:
                (dim,) = differing
                length = shape[dim] * self._size
                if not dim and any(f".{module}." in f".{name}" for module in VOCABULARY):
                    view = view.pad(0, max(length, view.shape[0]))
                if length == view.shape[dim]:
                    return view.part(dim, self._rank, self._size)
        raise PlanError(
            f"each of {self._size} ranks has the whole of a tensor, or an equal part of one dim; "
            f"got {shape} for {name!r}, of {view.shape}; write a map for it"
        )

    def equal(self, view: View, dim: int) -> View:
        """One of as many equal parts as there are ranks."""
        return view.part(dim, self._rank, self._size)

    def repeated(self, view: View, length: int) -> View:
        """A part of the first dim that this rank shares with the ranks beside it."""
        parts = view.shape[0] // length if length else 0
        if not parts or view.shape[0] % length or self._size % parts:
            raise PlanError(
                "heads of keys and values are cut into equal parts, each for as many ranks; "
                f"got {view.shape[0]} rows, of which each of {self._size} ranks has {length}"
            )
        return view.part(0, self._rank * parts // self._size, parts)


def _view(
    name: str,
    shape: tuple[int, ...],
    published: Mapping[str, View],
    own_part: _OwnPart,
    experts: tuple[int, int],
) -> View:
    path, _, tail = name.rpartition(".")
    if name in published:
        return _of_same_name(published[name], path.rpartition(".")[2], tail, shape, name, own_part)
    if tail in EXPERTS:
        return _experts(name, path, tail, shape, published, own_part, experts)
    around, _, module = path.rpartition(".")
    if module in FUSED:
        views = [published[_join(around, part, tail)] for part in FUSED[module]]
        return _fused(views, module, shape, name, own_part)
    if module == "lm_head":
        tied = [other for other in published if other.endswith(f"embed_tokens.{tail}")]
        if len(tied) == 1:
            return own_part.of(published[tied[0]], shape, name)
    return own_part.of(published[name], shape, name)  # which says what is published


def _of_same_name(
    view: View, module: str, tail: str, shape: tuple[int, ...], name: str, own_part: _OwnPart
) -> View:
    """A part of a tensor that the trainer has fused, too, has a part of each that is in it."""
    dim = 1 if tail in EXPERTS else 0
    is_fused = tail == "w13_weight" or (module in FUSED and module not in WHOLE)
    if view.shape == shape or not is_fused or view.shape[dim] == shape[dim]:
        return own_part.of(view, shape, name)
    if module == "qkv_proj":
        raise PlanError(
            "how many rows of a fused projection are queries does not follow from its shape; "
            f"got {shape} for {name!r}, of {view.shape}; write a map for it"
        )
    return cat([own_part.equal(view.part(dim, i, 2), dim) for i in range(2)], dim)


def _fused(
    views: Sequence[View], module: str, shape: tuple[int, ...], name: str, own_part: _OwnPart
) -> View:
    if module in WHOLE:
        return own_part.of(cat(views), shape, name)
    first = own_part.equal(views[0], 0)
    if module == "qkv_proj":
        length, odd = divmod(shape[0] - first.shape[0], 2)
        if odd or length <= 0:
            raise PlanError(
                f"queries, keys and values fill a fused projection; got {shape} for {name!r}, and "
                f"{first.shape[0]} rows of queries"
            )
        others = [own_part.repeated(view, length) for view in views[1:]]
    else:
        others = [own_part.equal(view, 0) for view in views[1:]]
    return cat([first, *others])


def _experts(
    name: str,
    path: str,
    tail: str,
    shape: tuple[int, ...],
    published: Mapping[str, View],
    own_part: _OwnPart,
    experts: tuple[int, int],
) -> View:
    if len(shape) != 3:
        raise PlanError(
            "the weights of all experts have three dims: experts, outputs, inputs; "
            f"got {shape} for {name!r}; write a map for it"
        )
    n_own, rows, _ = shape
    rank, size = experts
    whole = _join(path, STACKED[tail])
    if whole in published:
        n_experts = published[whole].shape[0]
    else:
        numbers = re.compile(re.escape(path) + r"\.(\d+)\.")
        found = {int(match[1]) for other in published if (match := numbers.match(other))}
        n_experts = len(found)
        if not found:
            _modules(f"{path}.0", tail, published)  # which says what is published
    if n_own * size != n_experts:
        raise PlanError(
            f"each of {size} ranks has as many of the experts; got {n_own} of {n_experts} for "
            f"{name!r}; pass expert_rank and expert_size"
        )
    of_experts = []
    for expert in range(rank * n_own, (rank + 1) * n_own):
        if whole in published:
            stacked = published[whole][expert]
            n_modules = len(EXPERTS[tail][0])
            modules = [stacked.part(0, i, n_modules) for i in range(n_modules)]
        else:
            modules = _modules(f"{path}.{expert}", tail, published)
        if len(modules) > 1:  # the outputs are cut: an equal part of each module
            part = (rows // len(modules), shape[2])
            modules = [own_part.of(module, part, name) for module in modules]
            of_experts.append(cat(modules))
        else:
            of_experts.append(own_part.of(modules[0], shape[1:], name))
    return stack(of_experts)


def _modules(path: str, tail: str, published: Mapping[str, View]) -> list[View]:
    for modules in EXPERTS[tail]:
        names = [f"{path}.{module}.weight" for module in modules]
        if all(name in published for name in names):
            return [published[name] for name in names]
    return [published[f"{path}.{EXPERTS[tail][0][0]}.weight"]]  # which says what is published


def _join(*names: str) -> str:
    return ".".join(filter(None, names))
