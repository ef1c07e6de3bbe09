"""`table`: the fits of a profile as text, and how well each one agrees with the points."""

from __future__ import annotations

from shardspec.amounts import columns, seconds_text

from costmodel.measured.fits import Estimate, LinePiece, LinkFit
from costmodel.profile import Profile

_LINK = ("fit", "algorithm", "latency, us", "95 %", "bandwidth, MB/s", "95 %", "R2", "error")
_CURVE = ("collective", "n", "from bytes", *_LINK[2:])
_COMPUTE = ("dtype", "peak, GFLOP/s", "at FLOP: part of the peak", "error")


def table(profile: Profile) -> str:
    """The tables that `python -m costmodel show` prints.

    Errors are medians of `|predicted / measured - 1|`. Intervals are 95 % confidence intervals.
    """
    fits = profile.fits
    versions = ", ".join(f"{name} {version}" for name, version in profile.versions)
    n_points = len(profile.collectives) + len(profile.matmuls) + len(profile.streams)
    lines = [
        f"{profile.backend}, {profile.n_processes} devices on {profile.machine}, {profile.date}",
        f"{versions}; {n_points} points",
        "",
        *columns([_LINK, *map(_link_row, fits.collectives), _link_row(fits.link)]),
        "",
        *columns(
            [
                _CURVE,
                *(
                    (curve.kind, str(curve.n), *_piece_row(piece), *quality)
                    for curve in fits.curves
                    for number, piece in enumerate(curve.pieces)
                    for quality in [
                        ("", "")
                        if number
                        else (f"{curve.r_squared:.3f}", f"{100 * curve.median_error:.1f} %")
                    ]
                ),
            ]
        ),
        "",
        *columns(
            [
                _COMPUTE,
                *(
                    (
                        of.dtype,
                        f"{of.peak_flops_per_s / 1e9:.3g}",
                        ", ".join(f"{flops:.2g}: {part:.2f}" for flops, part in of.efficiency),
                        f"{100 * of.median_error:.1f} %",
                    )
                    for of in fits.compute
                ),
            ]
        ),
        "",
        f"launch {seconds_text(fits.launch_s)}, "
        f"memory {fits.memory_bandwidth_bytes_per_s / 1e9:.3g} GB/s",
    ]
    return "\n".join(lines)


def _link_row(of: LinkFit) -> tuple[str, ...]:
    one = len(of.kinds) == 1
    return (
        of.kinds[0] if one else "all together",
        of.algorithms[0] if one else "",
        *_line_row(of.latency_s, of.s_per_byte),
        f"{of.r_squared:.3f}",
        f"{100 * of.median_error:.1f} %",
    )


def _piece_row(piece: LinePiece) -> tuple[str, ...]:
    return (str(piece.from_bytes), *_line_row(piece.latency_s, piece.s_per_byte))


def _line_row(alpha: Estimate, beta: Estimate) -> tuple[str, ...]:
    return (
        f"{alpha.value * 1e6:.3g}",
        f"{alpha.low * 1e6:.3g} to {alpha.high * 1e6:.3g}",
        _rate(beta.value),
        f"{_rate(beta.high)} to {_rate(beta.low)}",
    )


def _rate(s_per_byte: float) -> str:
    return f"{1e-6 / s_per_byte:.3g}" if s_per_byte > 0 else "free"
