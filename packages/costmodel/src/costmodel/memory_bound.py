"""Work of operators that mostly move bytes: elementwise, along rows, and by indices.

FLOP and bytes are counted as in `costmodel.operators`.
"""

from __future__ import annotations

import numpy as np

from costmodel.base.checks import Quantity, checked, counts
from costmodel.base.dtype import itemsize_bytes
from costmodel.errors import QuantityError
from costmodel.operators import Work


def elementwise(
    n: Quantity, n_inputs: Quantity, dtype: str, *, flops_per_element: Quantity = 1
) -> Work:
    """Work of an elementwise function of `n_inputs` tensors of `n` elements each.

    Args:
        n: Number of elements of the result.
        n_inputs: Number of inputs as large as the result; small inputs that are broadcast are left
            out.
        dtype: Dtype of all tensors.
        flops_per_element: 1 for an addition; the sum of all operations for a fused function.

    Raises:
        QuantityError: A count is not a whole number >= 0, or `flops_per_element` is negative.
        UnknownDtypeError: `dtype` is not the name of a dtype.

    Examples:
        >>> elementwise(1_000_000, 2, "float32")
        Work(flops=1000000.0, n_bytes=12000000.0, dtype='float32')
    """
    n, n_inputs = counts(n=n, n_inputs=n_inputs)
    flops = n * checked("flops_per_element", flops_per_element)
    return Work.from_elements(flops, n * (n_inputs + 1), dtype, n_results=n)


def reduction(n: Quantity, n_results: Quantity, dtype: str) -> Work:
    """Work of the sum, product, maximum or minimum of `n` elements in `n_results` parts.

    Raises:
        QuantityError: A count is not a whole number >= 0, or there are more results than elements.
        UnknownDtypeError: `dtype` is not the name of a dtype.

    Examples:
        >>> reduction(1_000_000, 1000, "float32")
        Work(flops=999000.0, n_bytes=4004000.0, dtype='float32')
    """
    n, n_results = counts(n=n, n_results=n_results)
    if np.any(np.less(n, n_results)):
        raise QuantityError(f"a reduction has n_results <= n; got n={n}, n_results={n_results}")
    return Work.from_elements(n - n_results, n + n_results, dtype, n_results=n_results)


def softmax(rows: Quantity, columns: Quantity, dtype: str) -> Work:
    """Work of the softmax of each row, read and written once because a row stays on the chip.

    For a row, the maximum, differences, exponentials, their sum, and quotients are computed.

    Raises:
        QuantityError: A count is not a whole number >= 0.
        UnknownDtypeError: `dtype` is not the name of a dtype.
    """
    rows, columns = counts(rows=rows, columns=columns)
    n = rows * columns
    return Work.from_elements(5 * n - 2 * rows, 2 * n, dtype, n_results=n)


def normalisation(rows: Quantity, columns: Quantity, dtype: str) -> Work:
    """Work of the layer normalisation of each row, with a scale and a shift for each column.

    For a row, these are computed: the mean, the differences, the mean of their squares, one over
    the square root of that plus epsilon; and for each element the product with it and with the
    scale, and the sum with the shift. The row stays on the chip.

    Raises:
        QuantityError: A count is not a whole number >= 0.
        UnknownDtypeError: `dtype` is not the name of a dtype.

    Reference:
        Ba, Kiros, Hinton, "Layer Normalization", arXiv 1607.06450, 2016, equations 3 and 4.
    """
    rows, columns = counts(rows=rows, columns=columns)
    n = rows * columns
    return Work.from_elements(7 * n + 3 * rows, 2 * n + 2 * columns, dtype, n_results=n)


def gather(n_rows: Quantity, row_size: Quantity, dtype: str, index_dtype: str) -> Work:
    """Work of copying rows of a table by index, such as an embedding lookup.

    Args:
        n_rows: Number of indices; a repeated index reads its row again.
        row_size: Elements of a row. The rest of the table is not read.
        dtype: Dtype of the table.
        index_dtype: Dtype of the indices.

    Raises:
        QuantityError: A count is not a whole number >= 0.
        UnknownDtypeError: A dtype is not the name of one.

    Examples:
        >>> gather(1024, 4096, "bfloat16", "int32")
        Work(flops=0.0, n_bytes=16781312.0, dtype='bfloat16')
    """
    return _by_index(n_rows, row_size, dtype, index_dtype, n_passes=2, flops_per_element=0)


def scatter(
    n_rows: Quantity, row_size: Quantity, dtype: str, index_dtype: str, *, add: bool
) -> Work:
    """Work of writing rows into a table by index, in place, or of adding them to its rows.

    The gradient of an embedding lookup adds. Arguments and errors are those of `gather`.
    """
    # Each row is read and written; to add, the row of the table is read as well.
    return _by_index(
        n_rows, row_size, dtype, index_dtype, n_passes=2 + add, flops_per_element=int(add)
    )


def _by_index(
    n_rows: Quantity,
    row_size: Quantity,
    dtype: str,
    index_dtype: str,
    *,
    n_passes: int,
    flops_per_element: int,
) -> Work:
    n_rows, row_size = counts(n_rows=n_rows, row_size=row_size)
    n = n_rows * row_size
    indices = n_rows * itemsize_bytes(index_dtype) / itemsize_bytes(dtype)
    return Work.from_elements(flops_per_element * n, n_passes * n + indices, dtype, n_results=n)
