"""Rules of operators that read or write at positions given by index operands.

Dims that a slice covers entirely are parallel, and so are the dims of the indices. An indexed dim
can be split if the local program skips the indices that fall outside its shard (`masked`;
`embedding`, `pick` and similar kinds always are). A lookup then sums over the rows of the table,
since each device contributes zeros for the rows that it lacks, and a scatter is parallel in them.
If the local program does not skip them, the dim stays whole.
"""

from __future__ import annotations

from autoshard.graph.rule import Rule
from autoshard.rules.factors import Dim, Factors, Shape, Shapes
from autoshard.rules.notation import labelled, letters_of


def gather(
    operand_shapes: Shapes,
    result_shapes: Shapes,
    *,
    slice_sizes: Shape,
    offset_dims: tuple[int, ...],
    collapsed_slice_dims: tuple[int, ...],
    start_index_map: tuple[int, ...],
    operand_batching_dims: tuple[int, ...] = (),
    start_indices_batching_dims: tuple[int, ...] = (),
    masked: bool = False,
) -> Rule:
    """XLA's gather: slices of the operand, at offsets in the last dim of the indices.

    Args:
        operand_shapes: Operand and indices.
        result_shapes: One shape.
        slice_sizes: The size of a slice in each dim of the operand.
        offset_dims: The dims of the result that run within a slice.
        collapsed_slice_dims: The dims of the operand with slice size 1 that the result lacks.
        start_index_map: The operand dim that each entry of an index is an offset in.
        operand_batching_dims: Dims of the operand that correspond to dims of the indices.
        start_indices_batching_dims: These dims of the indices.
        masked: Whether a device returns zeros for indices of a collapsed dim outside its shard.
    """
    (operand, indices), (result,) = operand_shapes, result_shapes
    factors = Factors()
    index_dims = tuple(factors.parallel(n) for n in indices[:-1])
    batching = dict(zip(operand_batching_dims, start_indices_batching_dims, strict=True))
    operand_dims = {d: index_dims[i] for d, i in batching.items()}
    if masked:
        operand_dims |= {d: factors.reduced(operand[d]) for d in collapsed_slice_dims}
    outer = iter(index_dims)
    windows = iter(d for d in range(len(operand)) if d not in (*collapsed_slice_dims, *batching))
    result_dims: list[Dim] = []
    for d, n in enumerate(result):
        if d not in offset_dims:
            result_dims.append(next(outer))
            continue
        window = next(windows)
        if slice_sizes[window] == operand[window] and window not in start_index_map:
            operand_dims[window] = factors.parallel(n)
            result_dims.append(operand_dims[window])
        else:
            result_dims.append(factors.whole(n))
    source = tuple(
        operand_dims[d] if d in operand_dims else factors.whole(n) for d, n in enumerate(operand)
    )
    offsets = (*index_dims, factors.whole(indices[-1]))
    return factors.rule([source, offsets], [tuple(result_dims)], ((0,),))


def scatter(
    operand_shapes: Shapes,
    result_shapes: Shapes,
    *,
    adds: bool,
    update_window_dims: tuple[int, ...],
    inserted_window_dims: tuple[int, ...],
    scatter_dims_to_operand_dims: tuple[int, ...],
    operand_batching_dims: tuple[int, ...] = (),
    scatter_indices_batching_dims: tuple[int, ...] = (),
    masked: bool = False,
) -> Rule:
    """XLA's scatter, the inverse of `gather`: writes or adds updates at offsets of an operand.

    If it adds, the dims of the indices are summed over. The operand counts once in such a sum: on
    all devices of a summed axis but the first, the local program takes zeros in its place.

    Args:
        operand_shapes: Operand, indices and updates.
        result_shapes: One shape.
        adds: Whether updates are added; if not, one of those at the same position remains.
        update_window_dims: The dims of the updates that run within a slice.
        inserted_window_dims: The dims of the operand that the updates lack.
        scatter_dims_to_operand_dims: The operand dim that each entry of an index is an offset in.
        operand_batching_dims: Dims of the operand that correspond to dims of the indices.
        scatter_indices_batching_dims: These dims of the indices.
        masked: Whether a device skips updates whose index of an inserted dim is outside its shard.
    """
    operand, indices, updates = operand_shapes
    factors = Factors()
    batching = dict(zip(operand_batching_dims, scatter_indices_batching_dims, strict=True))

    def index_dim(dim: int, size: int) -> Dim:
        if dim in batching.values():
            return factors.parallel(size)
        return factors.reduced(size) if adds else factors.whole(size)

    index_dims = tuple(index_dim(i, n) for i, n in enumerate(indices[:-1]))
    operand_dims = {d: index_dims[i] for d, i in batching.items()}
    if masked:
        operand_dims |= {d: factors.parallel(operand[d]) for d in inserted_window_dims}
    outer = iter(index_dims)
    windows = iter(d for d in range(len(operand)) if d not in (*inserted_window_dims, *batching))
    update_dims: list[Dim] = []
    for d, n in enumerate(updates):
        if d not in update_window_dims:
            update_dims.append(next(outer))
            continue
        window = next(windows)
        if n == operand[window] and window not in scatter_dims_to_operand_dims:
            operand_dims[window] = factors.parallel(n)
            update_dims.append(operand_dims[window])
        else:
            update_dims.append(factors.whole(n))
    target = tuple(
        operand_dims[d] if d in operand_dims else factors.whole(n) for d, n in enumerate(operand)
    )
    offsets = (*index_dims, factors.whole(indices[-1]))
    linear = ((0, 2),) if adds else ()
    return factors.rule([target, offsets, tuple(update_dims)], [target], linear)


def embedding(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """A look-up of rows: `(v, d), (...) -> (..., d)`; masked, so the rows may be split.

    Examples:
        >>> str(embedding(((50, 8), (2, 4)), ((2, 4, 8),)))
        '(a,b)(c,d)->(c,d,b) {a=50 sum, b=8, c=2, d=4} linear {0}'
    """
    word = letters_of(operand_shapes[1])
    return labelled(f"vd,{word}->{word}d", operand_shapes, result_shapes, linear=((0,),))


def embedding_gradient(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """The table's gradient: `(..., d), (...) -> (v, d)`; each device adds to the rows it holds."""
    word = letters_of(operand_shapes[1])
    return labelled(f"{word}d,{word}->vd", operand_shapes, result_shapes, linear=((0,),))


def pick(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """One entry of the last dim for each label, as in a loss: `(..., v), (...) -> (...)`.

    Masked, so the classes may be split (Megatron's vocabulary-parallel cross-entropy).
    """
    word = letters_of(operand_shapes[1])
    return labelled(f"{word}v,{word}->{word}", operand_shapes, result_shapes, linear=((0,),))


def pick_gradient(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """The gradient of `pick`, `(...), (...) -> (..., v)`: at the labels, and zero elsewhere."""
    word = letters_of(operand_shapes[1])
    return labelled(f"{word},{word}->{word}v", operand_shapes, result_shapes, linear=((0,),))


def one_hot(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """Labels as vectors, `(...) -> (..., v)`: a device marks the labels among its classes."""
    word = letters_of(operand_shapes[0])
    return labelled(f"{word}->{word}v", operand_shapes, result_shapes)
