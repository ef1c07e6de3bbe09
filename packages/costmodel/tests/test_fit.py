import math

import numpy as np
import pytest
from costmodel import Device
from costmodel.errors import FitError, MissingExtraError, UnknownNameError
from costmodel.measured.fit import fit_compute, fit_curve, fit_line, fit_link
from costmodel.measured.points import CollectivePoint, MatmulPoint
from costmodel.time.algorithm_table import rounds
from hypothesis import given
from hypothesis import strategies as st

SIZES = 4.0 ** np.arange(4, 13)
ALPHAS = st.floats(1e-7, 1e-3)
BETAS = st.floats(1e-11, 1e-8)
SEEDS = st.integers(0, 2**32 - 1)


def noisy(seconds: np.ndarray, rng: np.random.Generator, noise: float) -> np.ndarray:
    return seconds * np.exp(rng.normal(0, noise, seconds.shape))


def disturbed(seconds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """5 % noise, and every tenth point 2 to 10 times too slow."""
    seconds = noisy(seconds, rng, 0.05)
    far_off = rng.permutation(len(seconds)) < len(seconds) // 10
    return np.where(far_off, seconds * rng.uniform(2, 10, len(seconds)), seconds)


def points(kind: str, algorithm: str, groups, alpha: float, beta: float) -> list[CollectivePoint]:
    found = []
    for n in groups:
        of = rounds(kind, algorithm, n)
        for n_bytes in SIZES.astype(int):
            seconds = of.messages * alpha + (of.exchanged + of.one_way) * n_bytes * beta
            found.append(CollectivePoint(kind, n, int(n_bytes), (float(seconds),)))
    return found


@given(ALPHAS, BETAS)
def test_exact_points_give_their_line(alpha, beta):
    line = fit_line(np.ones(len(SIZES)), SIZES, alpha + beta * SIZES)
    assert line.alpha.value == pytest.approx(alpha, rel=1e-6)
    assert line.beta.value == pytest.approx(beta, rel=1e-6)


@given(st.floats(1e-6, 1e-4), st.floats(1e-10, 1e-8), SEEDS)
def test_noise_and_a_tenth_of_outliers_move_alpha_and_beta_by_less_than_a_twentieth(
    alpha, beta, seed
):
    sizes = np.repeat(np.concatenate([[0.0], SIZES]), 20)  # 0 and 16 MiB: both ends are visible
    seconds = disturbed(alpha + beta * sizes, np.random.default_rng(seed))
    line = fit_line(np.ones(len(sizes)), sizes, seconds)
    assert line.alpha.value == pytest.approx(alpha, rel=0.05)
    assert line.beta.value == pytest.approx(beta, rel=0.05)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(1e-9, 1e3)), min_size=2, max_size=20))
def test_no_points_give_a_negative_or_infinite_estimate(rows):
    sizes, seconds = np.array(rows, dtype=float).T
    line = fit_line(np.ones(len(rows)), sizes, seconds)
    for of in (line.alpha, line.beta):
        assert 0 <= of.low <= of.value <= of.high < math.inf


def test_a_time_that_falls_with_the_size_has_no_beta():
    line = fit_line(np.ones(len(SIZES)), SIZES, 1 / SIZES)
    assert line.beta.value == 0


def test_nineteen_of_twenty_intervals_cover():
    rng = np.random.default_rng(0)
    alpha, beta, sizes = 1e-5, 1e-9, np.repeat(SIZES, 5)
    covered = np.array(
        [
            (of.alpha.low <= alpha <= of.alpha.high, of.beta.low <= beta <= of.beta.high)
            for of in (
                fit_line(np.ones(len(sizes)), sizes, noisy(alpha + beta * sizes, rng, 0.05))
                for _ in range(300)
            )
        ]
    ).mean(axis=0)
    assert (covered > 0.91).all()  # 0.95 less three standard deviations of 300 throws
    assert (covered < 0.99).all()


def test_nine_of_ten_intervals_cover_beside_outliers():
    rng = np.random.default_rng(0)
    alpha, beta, sizes = 1e-5, 1e-9, np.repeat(SIZES, 10)
    covered = np.array(
        [
            (of.alpha.low <= alpha <= of.alpha.high, of.beta.low <= beta <= of.beta.high)
            for of in (
                fit_line(np.ones(len(sizes)), sizes, disturbed(alpha + beta * sizes, rng))
                for _ in range(200)
            )
        ]
    ).mean(axis=0)
    assert (covered > 0.9).all()


def test_a_line_needs_two_points():
    with pytest.raises(FitError, match="needs two points; got 1"):
        fit_line([1], [2], [3])


def test_a_fit_without_scipy_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "scipy.optimize", None)
    with pytest.raises(MissingExtraError, match=r"meshwright-costmodel\[calibrate\]"):
        fit_line([1, 1], [1, 2], [1, 2])


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        ("all_reduce", "ring"),
        ("all_reduce", "recursive doubling"),
        ("all_reduce", "rabenseifner"),
        ("all_gather", "ring"),
        ("all_gather", "bruck"),
        ("all_to_all", "pairwise"),
        ("all_to_all", "bruck"),
        ("broadcast", "binomial"),
        ("broadcast", "scatter and all-gather"),
        ("reduce_scatter", "ring"),
        ("point_to_point", "message"),
    ],
)
def test_points_of_an_algorithm_give_its_name_alpha_and_beta(kind, algorithm):
    groups = (2,) if kind == "point_to_point" else (2, 4, 5, 8)
    fit = fit_link(points(kind, algorithm, groups, 2e-5, 1e-9))
    assert fit.algorithms == (algorithm,)
    assert fit.latency_s.value == pytest.approx(2e-5, rel=1e-6)
    assert fit.s_per_byte.value == pytest.approx(1e-9, rel=1e-6)
    assert fit.r_squared == pytest.approx(1)
    assert fit.median_error == pytest.approx(0, abs=1e-6)


def test_all_collectives_of_one_link_give_it():
    of = [
        *points("all_reduce", "ring", (2, 4), 2e-5, 1e-9),
        *points("all_gather", "bruck", (2, 4), 2e-5, 1e-9),
        *points("point_to_point", "message", (2,), 2e-5, 1e-9),
    ]
    fit = fit_link(of)
    assert fit.kinds == ("all_gather", "all_reduce", "point_to_point")
    assert fit.algorithms == ("bruck", "ring", "message")
    assert fit.latency_s.value == pytest.approx(2e-5, rel=1e-6)


def test_a_collective_that_nobody_knows_is_named():
    with pytest.raises(UnknownNameError, match=r"a collective is one of .*; got 'gossip'"):
        fit_link([CollectivePoint("gossip", 2, size, (1.0,)) for size in (1, 2)])


def curve_points(seconds_of) -> list[CollectivePoint]:
    return [
        CollectivePoint("all_reduce", 2, int(size), (float(seconds_of(size)),)) for size in SIZES
    ]


def test_a_single_line_is_one_piece():
    curve = fit_curve(curve_points(lambda size: 1e-5 + 1e-9 * size))
    assert len(curve.pieces) == 1
    assert curve.time(1e6) == pytest.approx(1e-5 + 1e-3)


def test_a_change_of_protocol_starts_a_piece_where_it_is():
    def seconds(size):
        return 1e-5 + 1e-9 * size if size < 2**15 else 5e-4 + 2e-9 * size

    curve = fit_curve(curve_points(seconds))
    assert [piece.from_bytes for piece in curve.pieces] == [0, 2**16]
    assert curve.median_error < 1e-6


@given(
    st.lists(st.floats(1e-6, 1e-2), min_size=len(SIZES), max_size=len(SIZES)),
    st.lists(st.floats(0, 1e9), min_size=2),
)
def test_more_bytes_never_cost_less_along_a_curve(seconds, sizes):
    curve = fit_curve(curve_points(dict(zip(SIZES, seconds, strict=True)).get))
    times = curve.time(np.sort(np.array(sizes)))
    assert (np.diff(times) >= 0).all()
    assert [curve.time(size) for size in sorted(sizes)] == list(times)


def test_a_curve_needs_two_sizes():
    with pytest.raises(FitError, match="points of two sizes; got"):
        fit_curve([CollectivePoint("all_reduce", 2, 8, (1.0,))])


def products(launch_s: float, rate: float) -> list[MatmulPoint]:
    return [
        MatmulPoint(size, size, size, "float32", (launch_s + 2.0 * size**3 / rate,))
        for size in (1, 64, 128, 256, 512)
    ]


def test_products_of_one_rate_give_launch_and_peak():
    launch_s, (fit,) = fit_compute(products(1e-5, 1e10))
    assert launch_s == pytest.approx(1e-5, rel=1e-3)
    assert fit.peak_flops_per_s == pytest.approx(1e10, rel=1e-3)
    assert [part for _, part in fit.efficiency] == pytest.approx([1, 1, 1, 1], rel=1e-3)
    assert fit.median_error < 1e-3


@given(st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=8))
def test_a_device_accepts_every_fitted_curve(seconds):
    of = [MatmulPoint(2**i, 2**i, 2**i, "float32", (one,)) for i, one in enumerate(seconds)]
    try:
        launch_s, (fit,) = fit_compute(of)
    except FitError:
        assert max(seconds) < 2 * min(seconds)
        return
    curves = (("float32", fit.efficiency),)
    Device("any", (("float32", fit.peak_flops_per_s),), 1, 1.0, launch_s, efficiency=curves)


def test_no_products_have_no_curve():
    with pytest.raises(FitError, match="points of matrix products; got none"):
        fit_compute([])


def test_products_that_are_all_launch_ask_for_larger_ones():
    with pytest.raises(FitError, match="takes twice as long as the launch"):
        fit_compute([MatmulPoint(1, 1, 1, "float32", (1.0,))])
