"""Products of matrices take the time of their tiles; the H200's are compared with measured ones."""

import math
from dataclasses import replace

import numpy as np
import pytest
from costmodel import Cluster, Product, ProductUnits, QuantityError, operator_time
from costmodel.operators import matmul
from costmodel.testing import product_units
from hypothesis import given
from hypothesis import strategies as st

PEAK, BANDWIDTH = 1e15, 3e12
sizes = st.integers(1, 1 << 16)
products = st.builds(Product, sizes, sizes, sizes, st.integers(1, 64), st.sampled_from([2.0, 4.0]))

MEASURED = {
    (256, 1024, 1024): 4.0e-6,
    (256, 8192, 2048): 14.2e-6,
    (2048, 2048, 2048): 25.9e-6,
    (2048, 4096, 14336): 336.4e-6,
    (2048, 50304, 768): 256.5e-6,
    (8192, 1024, 1024): 29.4e-6,
    (8192, 768, 3072): 53.9e-6,
    (8192, 8192, 8192): 1573.0e-6,
    (8192, 28672, 8192): 5509.2e-6,
}
"""Seconds of products (m, n, k) in bfloat16 on an H200: medians of 5 runs of a CUDA graph with 3 to
60 products each, PyTorch 2.11, random numbers."""


@given(product_units(), products)
def test_no_product_is_faster_than_its_flops_at_the_part_of_the_peak(
    units: ProductUnits, product: Product
) -> None:
    flops = 2.0 * product.m * product.n * product.k * product.batch
    seconds = units.seconds(product, PEAK, BANDWIDTH)
    assert seconds >= flops / (units.part * PEAK) * (1 - 1e-12) + units.fill_s


@given(product_units(), products, st.tuples(*[st.integers(1, 8)] * 4))
def test_parts_of_a_product_take_no_less_than_its_bound(
    units: ProductUnits, product: Product, parts: tuple[int, int, int, int]
) -> None:
    whole = (product.m, product.n, product.k, product.batch)
    each = (math.ceil(size / n) for size, n in zip(whole, parts, strict=True))
    one_s = units.seconds(Product(*each, product.itemsize), PEAK, BANDWIDTH)
    least_s = units.least_seconds(product, PEAK, BANDWIDTH)
    assert math.prod(parts) * (one_s - units.fill_s) >= least_s * (1 - 1e-9)


@given(product_units(), products)
def test_a_product_takes_as_long_as_its_transpose(units: ProductUnits, product: Product) -> None:
    other = Product(product.n, product.m, product.k, product.batch, product.itemsize)
    both = [units.seconds(one, PEAK, BANDWIDTH) for one in (product, other)]
    assert both[0] == pytest.approx(both[1], rel=1e-12)


@given(product_units(), products, st.integers(1, 1000))
def test_more_rows_never_take_less(units: ProductUnits, product: Product, more: int) -> None:
    larger = Product(product.m + more, product.n, product.k, product.batch, product.itemsize)
    assert units.seconds(product, PEAK, BANDWIDTH) <= units.seconds(larger, PEAK, BANDWIDTH)


@given(product_units(), st.lists(st.tuples(sizes, sizes, sizes), min_size=1, max_size=4))
def test_arrays_of_sizes_have_the_times_of_each(
    units: ProductUnits, each: list[tuple[int, int, int]]
) -> None:
    m, n, k = np.array(each, dtype=float).T
    together = units.seconds(Product(m, n, k), PEAK, BANDWIDTH)
    assert list(together) == [units.seconds(Product(*one), PEAK, BANDWIDTH) for one in each]


def test_a_last_wave_takes_as_long_as_a_full_one() -> None:
    units = ProductUnits(units=4, part=0.5, fill_s=1e-6, tile=64)
    of_a_tile_s = 2 * 64 * 64 * 64 / (0.5 * PEAK / 4) + 64 * 64 * 2 / (BANDWIDTH / 4)
    for tiles, waves in ((4, 1), (5, 2), (8, 2)):
        seconds = units.seconds(Product(64 * tiles, 64, 64, 1, 2.0), PEAK, BANDWIDTH)
        assert seconds == pytest.approx(waves * of_a_tile_s + 1e-6)


def test_units_without_a_tile_share_the_terms_of_the_others() -> None:
    units = ProductUnits(units=8, part=1.0, fill_s=0.0, tile=64)
    one = Product(64, 64, 1 << 20, 1, 2.0)
    alone_s = 2 * 64 * 64 * one.k / (PEAK / 8)
    assert units.seconds(one, PEAK, BANDWIDTH) == pytest.approx(alone_s / 8, rel=0.01)


def test_nothing_takes_no_time() -> None:
    units = ProductUnits(units=8, part=1.0, fill_s=1e-6)
    assert units.seconds(Product(0, 64, 64), PEAK, BANDWIDTH) == 0.0
    assert units.seconds(Product(64, 64, 0), PEAK, BANDWIDTH) == 0.0


def test_an_operator_takes_the_time_of_its_tiles_only_if_its_sizes_are_known() -> None:
    device = Cluster.preset("h200-sxm").device
    work = matmul(300, 300, 300, "bfloat16")
    product = Product(300, 300, 300, 1, 2.0)
    known, unknown = (
        operator_time(work.flops, work.n_bytes, device, "bfloat16", 1.0, of)
        for of in (product, None)
    )
    assert device.products is not None
    rate = device.memory_rate_bytes_per_s
    of_tiles_s = device.products.seconds(product, device.peak("bfloat16"), rate)
    assert known == pytest.approx(device.launch_s + of_tiles_s)
    assert unknown < known
    other = replace(device, products=None)
    both = {operator_time(1e9, 1e6, other, "float32", 1.0, of) for of in (product, None)}
    assert len(both) == 1


def test_an_operator_inside_a_kernel_is_not_launched() -> None:
    device = Cluster.preset("h200-sxm").device
    inside = operator_time(1e9, 0.0, device, "bfloat16", 0.0)
    assert operator_time(1e9, 0.0, device, "bfloat16") == pytest.approx(inside + device.launch_s)
    with pytest.raises(QuantityError, match="launches"):
        operator_time(1e9, 0.0, device, "bfloat16", -1.0)


@pytest.mark.parametrize("shape", MEASURED)
def test_the_h200_multiplies_as_it_was_measured(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    device = Cluster.preset("h200-sxm").device
    work = matmul(m, n, k, "bfloat16")
    product = Product(m, n, k, 1, 2.0)
    seconds = operator_time(work.flops, work.n_bytes, device, "bfloat16", 0.0, product)
    assert abs(math.log(seconds / MEASURED[shape])) < math.log(1.25)


@pytest.mark.parametrize(
    "wrong", [{"units": 0}, {"part": 0.0}, {"part": 1.5}, {"fill_s": -1.0}, {"tile": 0.5}]
)
def test_units_with_a_wrong_number_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(QuantityError, match=next(iter(wrong))):
        ProductUnits(**({"units": 8, "part": 0.8, "fill_s": 1e-6, "tile": 64} | wrong))  # type: ignore[arg-type]
