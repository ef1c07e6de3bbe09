"""The time of a matrix product by its sizes: tiles of the result, and the units that compute them.

A GPU computes the result of a product in tiles, each on one of its units (NVIDIA: streaming
multiprocessors). So a product takes

    fill + waves (2 t^2 k / (part peak / units) + t^2 itemsize / (memory bandwidth / units))

where `waves = ceil(tiles / units)`: a last wave that is not full takes as long as a full one. A
tile is computed, then written. With few tiles and many terms `k`, several units share a tile, each
with a part of the terms, and the parts of the result are added up in memory (split-k).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.base.checks import Quantity, assign, checked, count, number, positive

_SPLITS = (1, 2, 4, 8)
_LEAST_TERMS = 128
"""Terms of a part below which no library splits them: what it costs would exceed what it saves."""


@dataclass(frozen=True, slots=True)
class Product:
    """The sizes of `batch` products of an `m x k` with a `k x n` matrix; numbers or arrays."""

    m: Quantity
    n: Quantity
    k: Quantity
    batch: Quantity = 1.0
    itemsize: float = 4.0
    """Bytes of an element of the result."""


@dataclass(frozen=True, slots=True)
class ProductUnits:
    """What multiplies the matrices of a device.

    Raises:
        QuantityError: A number is out of its range.
    """

    units: int
    """Units that compute a tile each, such as the streaming multiprocessors of a GPU."""
    part: float
    """The part of the dtype's peak that large products reach, at most 1."""
    fill_s: float
    """Seconds in which a product begins and ends, however small."""
    tile: int = 64
    """Rows and columns of a tile."""

    def __post_init__(self) -> None:
        assign(
            self,
            units=count("units of a device's products", self.units, least=1),
            part=positive("part of the peak, where 80 % is 0.8, of products", self.part, most=1),
            fill_s=number("fill_s of a device's products", self.fill_s),
            tile=count("tile of a device's products", self.tile, least=1),
        )

    def seconds(self, of: Product, peak: float, bandwidth: float) -> Quantity:
        """Seconds of products, by the formula above.

        Args:
            of: Their sizes.
            peak: The device's rate for their dtype, in FLOP/s.
            bandwidth: The bytes a second that the device reads or writes.

        Raises:
            QuantityError: A size is negative or not finite.
        """
        m, n, k = (checked(name, getattr(of, name)) for name in ("m", "n", "k"))
        batch = checked("batch", of.batch)
        tiles = np.ceil(m / self.tile) * np.ceil(n / self.tile) * batch
        elements = self.tile**2
        write_s = elements * of.itemsize * self.units / bandwidth
        best: Quantity = np.inf
        for parts in _SPLITS:
            waves = np.ceil(tiles * parts / self.units)
            term_s = 2 * elements * self.units / (self.part * peak)
            seconds = waves * (np.ceil(k / parts) * term_s + write_s)
            if parts > 1:
                added_s = (parts + 1) * m * n * batch * of.itemsize / bandwidth
                allowed = (tiles * parts <= self.units) & (k >= parts * _LEAST_TERMS)
                seconds = np.where(allowed, seconds + self.fill_s + added_s, np.inf)
            best = np.minimum(best, seconds)
        return (best + self.fill_s) * (tiles * k > 0)

    def least_seconds(self, of: Product, peak: float, bandwidth: float) -> Quantity:
        """Lower bound of `seconds` without `fill_s`, and of its sum over any parts of the products.

        All units are busy, and no tile reaches past the ends of a matrix.

        Args:
            of: The sizes of the whole products.
            peak: The device's rate for their dtype, in FLOP/s.
            bandwidth: The bytes a second that the device reads or writes.

        Raises:
            QuantityError: A size is negative or not finite.
        """
        elements = checked("m", of.m) * checked("n", of.n) * checked("batch", of.batch)
        terms = checked("k", of.k)
        compute_s = 2 * elements * terms / (self.part * peak)
        return (compute_s + elements * of.itemsize / bandwidth) * (terms > 0)
