r"""Fits of the cost model to measured points.

A line `t = alpha a + beta v` is fitted to points with `a` messages and `v` bytes each by
non-negative least squares of the *relative* residuals, so that a microsecond counts as much at the
small end as a millisecond at the large one:

    minimise  sum_i  w_i ((alpha a_i + beta v_i) / t_i - 1)^2    with alpha, beta >= 0

The weights `w_i` are Tukey's biweight of the residual over a robust scale (1.4826 times the median
absolute residual), iterated: points far off the line, such as those that another program disturbed,
end with weight 0. After the first iteration residuals are relative to the fitted time, because
dividing by noisy measured times would favour the fast ones.

Reference:
    AutoDDL, section 3.2: least squares over Table 2. Holland, Welsch, "Robust Regression Using
    Iteratively Reweighted Least-Squares", Communications in Statistics A6(9), 1977: the biweight,
    its constant 4.685 (95 % efficient for normal errors). Huber, "Robust Statistics", 1981, section
    7.6: the covariance. Pieces by size (`fit_curve`): Bédaride et al., "Toward Better Simulation of
    MPI Applications on Ethernet/TCP Networks", PMBS 2013, because libraries switch protocols with
    the size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from shardspec.amounts import seconds_text

from costmodel.errors import FitError, MissingExtraError
from costmodel.measured.fits import ComputeFit, CurveFit, Estimate, LinePiece, LinkFit
from costmodel.measured.points import CollectivePoint, MatmulPoint
from costmodel.time.algorithm_table import known_algorithms, rounds

_BIWEIGHT = 4.685
_SCALE = 1.4826  # of a normal distribution, standard deviation over median absolute deviation
_NO_SCALE = 1e-9  # relative residuals below this are rounding errors, and no point is far off
_ROUNDS = 50
_CONFIDENCE = 0.95
_SIZES_A_PIECE = 3  # a line through two sizes would fit any two points
_MOST_PIECES = 4


@dataclass(frozen=True, slots=True)
class FittedLine:
    """Result of `fit_line`."""

    alpha: Estimate
    beta: Estimate
    scale: float
    """Robust standard deviation of the relative residuals."""


def fit_line(messages: Any, volume: Any, seconds: Any) -> FittedLine:
    """Fits `seconds = alpha messages + beta volume`; see the module for the method.

    Args:
        messages: Number of messages of each point, shape (n_points,).
        volume: Bytes of each point, likewise.
        seconds: Measured seconds of each point, all > 0, likewise.

    Raises:
        FitError: There are fewer than two points.
        MissingExtraError: scipy is not installed.

    Examples:
        >>> n_bytes = np.array([0, 1e3, 1e6, 1e7])
        >>> line = fit_line(np.ones(4), n_bytes, 1e-5 + n_bytes / 1e9)
        >>> f"{line.alpha.value:.2g} s, {1 / line.beta.value:.2g} B/s"
        '1e-05 s, 1e+09 B/s'
    """
    try:
        from scipy.optimize import nnls
        from scipy.stats import t as student
    except ImportError as error:
        raise MissingExtraError("fits", "calibrate") from error

    design = np.column_stack([messages, volume]).astype(float)
    seconds = np.asarray(seconds, dtype=float)
    if len(seconds) < 2:
        raise FitError(f"a line has two unknowns and needs two points; got {len(seconds)}")
    # Columns are scaled, because bytes are far larger than numbers of messages.
    unit = np.maximum(np.abs(design).max(axis=0), np.finfo(float).tiny)
    weights, reference = np.ones(len(seconds)), seconds
    for _ in range(_ROUNDS):
        root = np.sqrt(weights) / reference
        solution, _residual = nnls(design / unit * root[:, None], seconds * root)
        predicted = design / unit @ solution
        reference = np.maximum(predicted, seconds / 1e3)  # a line may pass through 0
        residual = seconds / reference - 1
        scale = max(_SCALE * float(np.median(np.abs(residual))), _NO_SCALE)
        before, weights = weights, _biweight(residual / scale)
        if np.abs(weights - before).max() < 1e-6:
            break
    free = solution > 0
    degrees = max(len(seconds) - int(free.sum()), 1)
    errors = _standard_errors((design / unit / reference[:, None])[:, free], residual, scale)
    reach = np.zeros(2)
    reach[free] = errors * student.ppf(0.5 + _CONFIDENCE / 2, degrees)
    if not free.all():  # a number held at 0 gets the interval that it would have as a free one
        both = _standard_errors(design / unit / reference[:, None], residual, scale)
        reach[~free] = both[~free] * student.ppf(0.5 + _CONFIDENCE / 2, degrees)
    alpha, beta = (
        Estimate(float(value), float(max(value - r, 0.0)), float(value + r))
        for value, r in zip(solution / unit, reach / unit, strict=True)
    )
    return FittedLine(alpha, beta, scale)


def fit_link(points: Sequence[CollectivePoint]) -> LinkFit:
    """Fits one alpha and one beta to points of any collectives, sizes and groups.

    For each collective, the algorithm that explains its own points best is chosen. Groups of a
    single size cannot tell algorithms apart, because these then differ only by factors; in this
    case it is the ring, as in AutoDDL, and for a broadcast the binomial tree.

    Raises:
        FitError: There are fewer than two points.
        UnknownNameError: A point has an unknown collective.
    """
    kinds = tuple(sorted({point.kind for point in points}))
    chosen = tuple(_best_algorithm([p for p in points if p.kind == kind]) for kind in kinds)
    by_kind = dict(zip(kinds, chosen, strict=True))
    messages, volume, seconds = _system(points, by_kind)
    line = fit_line(messages, volume, seconds)
    messages, volume, medians = _system(points, by_kind, medians=True)
    predicted = line.alpha.value * messages + line.beta.value * volume
    return LinkFit(kinds, chosen, line.alpha, line.beta, *_quality(predicted, medians))


def fit_curve(points: Sequence[CollectivePoint]) -> CurveFit:
    """Fits lines for ranges of bytes (pieces) to points of one collective in groups of one size.

    Schwarz's criterion (BIC) decides the number of pieces, at most four of at least three sizes.

    Raises:
        FitError: The points have fewer than two sizes.
    """
    points = sorted(points, key=lambda point: point.n_bytes)
    sizes = sorted({point.n_bytes for point in points})
    if len(sizes) < 2:
        raise FitError(
            f"the time of a {points[0].kind if points else 'collective'} over its size needs "
            f"points of two sizes; got {sizes}; measure more with --sizes"
        )
    lines = _Lines(points, sizes)
    best = min(
        (
            (0, *starts, len(sizes))
            for n_pieces in range(1, min(_MOST_PIECES, max(1, len(sizes) // _SIZES_A_PIECE)) + 1)
            for starts in combinations(range(1, len(sizes)), n_pieces - 1)
            if n_pieces == 1 or _are_long((0, *starts, len(sizes)))
        ),
        key=lines.criterion,
    )
    pieces = []
    for start, stop in pairwise(best):
        line = lines.line(start, stop)
        pieces.append(LinePiece(sizes[start] if start else 0, line.alpha, line.beta))
    curve = CurveFit(points[0].kind, points[0].n, tuple(pieces), r_squared=0.0, median_error=0.0)
    n_bytes = np.array([point.n_bytes for point in points], float)
    medians = np.array([point.median_s for point in points])
    r_squared, median_error = _quality(curve.time(n_bytes), medians)
    return replace(curve, r_squared=r_squared, median_error=median_error)


def fit_compute(points: Iterable[MatmulPoint]) -> tuple[float, tuple[ComputeFit, ...]]:
    """Fits the launch time, and the peak and efficiency curve of each dtype.

    The launch time is that of the fastest product of all, whose arithmetic is negligible if the
    shapes start small enough. Products that take less than twice as long say little about the
    arithmetic and are left out of the curve. A product that took less time than a smaller one gets
    the time of the smaller, because a `costmodel.Device` refuses curves along which time falls.

    Returns:
        Seconds of a launch; the fits, sorted by dtype.

    Raises:
        FitError: There is no point, or no product of some dtype takes twice as long as the launch.
    """
    by_dtype: dict[str, list[MatmulPoint]] = {}
    for point in sorted(points, key=lambda point: point.flops):
        by_dtype.setdefault(point.dtype, []).append(point)
    if not by_dtype:
        raise FitError("the compute curve needs points of matrix products; got none")
    launch_s = min(point.median_s for of in by_dtype.values() for point in of)
    fits = tuple(_fit_dtype(of, launch_s) for _, of in sorted(by_dtype.items()))
    return launch_s, fits


def _biweight(residual: NDArray[Any]) -> NDArray[Any]:
    inside = np.abs(residual) < _BIWEIGHT
    weights: NDArray[Any] = np.where(inside, (1 - (residual / _BIWEIGHT) ** 2) ** 2, 0.0)
    return weights


def _standard_errors(design: NDArray[Any], residual: NDArray[Any], scale: float) -> NDArray[Any]:
    """Huber 1981, (7.6.9): mean psi^2 over squared mean psi', times the inverse of X'X."""
    n, p = design.shape
    u = residual / scale
    weights = _biweight(u)
    slopes = np.where(weights > 0, (1 - (u / _BIWEIGHT) ** 2) * (1 - 5 * (u / _BIWEIGHT) ** 2), 0.0)
    mean = max(float(slopes.mean()), 0.1)  # hardly ever needed; a mean of 0 would have no centre
    spread = 1 + p / n * float(slopes.var()) / mean**2
    variance = (spread * scale / mean) ** 2 * float(((weights * u) ** 2).sum()) / max(n - p, 1)
    inverse = np.linalg.pinv(design.T @ design)
    errors: NDArray[Any] = np.sqrt(variance * np.diag(inverse))
    return errors


def _system(
    points: Iterable[CollectivePoint], algorithm: Mapping[str, str], medians: bool = False
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Messages, bytes and seconds, with an entry for each batch or for each point's median."""
    rows = []
    for point in points:
        busiest = rounds(point.kind, algorithm[point.kind], point.n)
        volume = (busiest.exchanged + busiest.one_way) * point.n_bytes  # for a full-duplex link
        times = (point.median_s,) if medians else point.seconds
        rows += [(busiest.messages, volume, seconds) for seconds in times]
    messages, volumes, seconds = np.array(rows, float).reshape(-1, 3).T
    return messages, volumes, seconds


def _best_algorithm(points: Sequence[CollectivePoint]) -> str:
    kind = points[0].kind
    names = list(known_algorithms().of(kind))
    if kind == "broadcast":  # trees before chains
        names.sort(key=lambda name: name.startswith("chain"))
    if len({point.n for point in points}) == 1:
        return names[0]

    def error(name: str) -> float:
        line = fit_line(*_system(points, {kind: name}))
        messages, volume, medians = _system(points, {kind: name}, medians=True)
        relative = (line.alpha.value * messages + line.beta.value * volume) / medians - 1
        return float(np.abs(relative).mean())

    return min(names, key=error)


def _quality(predicted: NDArray[Any], measured: NDArray[Any]) -> tuple[float, float]:
    """R² of the logarithms of times, and the median relative error."""
    logs = np.log(measured)
    total = float(((logs - logs.mean()) ** 2).sum())
    safe = np.maximum(predicted, np.finfo(float).tiny)
    rest = float(((logs - np.log(safe)) ** 2).sum())
    r_squared = 1 - rest / total if total > 0 else float(rest == 0)
    return r_squared, float(np.median(np.abs(predicted / measured - 1)))


class _Lines:
    """Lines through ranges of sizes, each fitted once, and the quality of a cut into ranges."""

    def __init__(self, points: Sequence[CollectivePoint], sizes: Sequence[int]) -> None:
        of = {size: list(group) for size, group in groupby(points, lambda point: point.n_bytes)}
        self._points = [of[size] for size in sizes]
        self._lines: dict[tuple[int, int], tuple[FittedLine, float]] = {}

    def line(self, start: int, stop: int) -> FittedLine:
        return self._fitted(start, stop)[0]

    def criterion(self, cuts: tuple[int, ...]) -> float:
        """BIC with Laplace errors of the medians, which a few outliers do not dominate."""
        n = sum(map(len, self._points))
        loss = sum(self._fitted(*ends)[1] for ends in pairwise(cuts)) / n
        n_parameters = 3 * (len(cuts) - 1) - 1  # two for each line, and each start but the first
        return 2 * n * math.log(max(loss, 1e-4)) + n_parameters * math.log(n)

    def _fitted(self, start: int, stop: int) -> tuple[FittedLine, float]:
        if (start, stop) not in self._lines:
            points = [point for group in self._points[start:stop] for point in group]
            rows = np.array([(p.n_bytes, seconds) for p in points for seconds in p.seconds], float)
            line = fit_line(np.ones(len(rows)), rows[:, 0], rows[:, 1])
            n_bytes = np.array([p.n_bytes for p in points], float)
            medians = np.array([p.median_s for p in points])
            relative = (line.alpha.value + line.beta.value * n_bytes) / medians - 1
            self._lines[start, stop] = line, float(np.abs(relative).sum())
        return self._lines[start, stop]


def _are_long(cuts: tuple[int, ...]) -> bool:
    return all(stop - start >= _SIZES_A_PIECE for start, stop in pairwise(cuts))


def _fit_dtype(points: Sequence[MatmulPoint], launch_s: float) -> ComputeFit:
    dtype = points[0].dtype
    rates = [
        (flops, float(np.median([flops / (p.median_s - launch_s) for p in group])))
        for flops, group in (
            (flops, [p for p in same if p.median_s >= 2 * launch_s])
            for flops, same in groupby(points, lambda point: point.flops)
        )
        if group
    ]
    if not rates:
        raise FitError(
            f"the compute curve of {dtype!r} needs a product that takes twice as long as the "
            f"launch of {seconds_text(launch_s)}; got none; measure larger ones"
        )
    kept = [rates[0]]
    for flops, rate in rates[1:]:
        # At this rate, the product takes as long as the smaller one before it.
        most = kept[-1][1] * flops / kept[-1][0]
        kept.append((flops, min(rate, most * (1 - 1e-12))))  # so that rounding adds no time drop
    peak = max(rate for _, rate in kept)
    curve = tuple((flops, rate / peak) for flops, rate in kept)
    return ComputeFit(dtype, peak, curve, _left_out_error(kept))


def _left_out_error(rates: Sequence[tuple[float, float]]) -> float:
    """Median relative error of all rates but the ends, each predicted from the curve without it.

    0 if there are no others.
    """
    logs = np.log(np.array(rates))
    errors = [
        abs(math.expm1(np.interp(logs[i, 0], *np.delete(logs, i, axis=0).T) - logs[i, 1]))
        for i in range(1, len(logs) - 1)
    ]
    return float(np.median(errors)) if errors else 0.0
