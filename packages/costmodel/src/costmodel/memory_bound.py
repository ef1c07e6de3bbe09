"""Work of the operators that mostly move bytes: elementwise, along rows, and by indices.

What counts, and when an operator is no work, is said in `costmodel.operators`.
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
    """A function of `n` elements of each of `n_inputs` tensors, to one result of `n` elements.

    Args:
        n: Elements of the result.
        n_inputs: Tensors as large as the result; what is broadcast from few elements is left out.
        dtype: Of all tensors.
        flops_per_element: One for an addition; add up a fused function's.

    Raises:
        QuantityError: A count is no whole number >= 0, or `flops_per_element` is negative.
        UnknownDtypeError: `dtype` is no name of a dtype.

    Examples:
        >>> elementwise(1_000_000, 2, "float32")
        Work(flops=1000000.0, n_bytes=12000000.0, dtype='float32')
    """
    n, n_inputs = counts(n=n, n_inputs=n_inputs)
    flops = n * checked("flops_per_element", flops_per_element)
    return Work.from_elements(flops, n * (n_inputs + 1), dtype, n_results=n)


def reduction(n: Quantity, n_results: Quantity, dtype: str) -> Work:
    """The sum, product, maximum or minimum of `n` elements in `n_results` parts.

    Raises:
        QuantityError: A count is no whole number >= 0, or there are more results than elements.
        UnknownDtypeError: `dtype` is no name of a dtype.

    Examples:
        >>> reduction(1_000_000, 1000, "float32")
        Work(flops=999000.0, n_bytes=4004000.0, dtype='float32')
    """
    n, n_results = counts(n=n, n_results=n_results)
    if np.any(np.less(n, n_results)):
        raise QuantityError(f"a reduction has n_results <= n; got n={n}, n_results={n_results}")
    return Work.from_elements(n - n_results, n + n_results, dtype, n_results=n_results)


def softmax(rows: Quantity, columns: Quantity, dtype: str) -> Work:
    """Softmax of each row, read and written once: a row stays on the chip.

    A row takes its maximum, differences, exponentials, their sum, and quotients.

    Raises:
        QuantityError: A count is no whole number >= 0.
        UnknownDtypeError: `dtype` is no name of a dtype.
    """
    rows, columns = counts(rows=rows, columns=columns)
    n = rows * columns
    return Work.from_elements(5 * n - 2 * rows, 2 * n, dtype, n_results=n)


def normalisation(rows: Quantity, columns: Quantity, dtype: str) -> Work:
    """Layer normalisation of each row with a scale and a shift of each column.

    A row takes its mean, differences, their squares' mean, one over the root of that plus epsilon,
    and for each element the product with it, the scale and the shift. The row stays on the chip.

    Raises:
        QuantityError: A count is no whole number >= 0.
        UnknownDtypeError: `dtype` is no name of a dtype.

    Reference:
        Ba, Kiros, Hinton, "Layer Normalization", arXiv 1607.06450, 2016, equations 3 and 4.
    """
    rows, columns = counts(rows=rows, columns=columns)
    n = rows * columns
    return Work.from_elements(7 * n + 3 * rows, 2 * n + 2 * columns, dtype, n_results=n)


def gather(n_rows: Quantity, row_size: Quantity, dtype: str, index_dtype: str) -> Work:
    """Copies of the rows of a table that an index each names; an embedding lookup is one.

    Args:
        n_rows: Indices; one that comes again reads its row again.
        row_size: Elements of a row. The rest of the table is not read.
        dtype: Of the table.
        index_dtype: Of the indices.

    Raises:
        QuantityError: A count is no whole number >= 0.
        UnknownDtypeError: A dtype's name is none.

    Examples:
        >>> gather(1024, 4096, "bfloat16", "int32")
        Work(flops=0.0, n_bytes=16781312.0, dtype='bfloat16')
    """
    return _by_index(n_rows, row_size, dtype, index_dtype, n_passes=2, flops_per_element=0)


def scatter(
    n_rows: Quantity, row_size: Quantity, dtype: str, index_dtype: str, *, add: bool
) -> Work:
    """Rows written into a table, or added to it, in place, where an index each says.

    The gradient of an embedding lookup adds. Arguments and errors are those of `gather`.
    """
    # Each row is read and written; to add, the table's is read as well.
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
