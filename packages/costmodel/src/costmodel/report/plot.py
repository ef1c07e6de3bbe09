"""`plot`: draws the points and fits of a profile, with matplotlib (extra `plot`)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from shardspec.report.figure import new_figure, save_figure, wrong_name

from costmodel.errors import MissingExtraError, QuantityError
from costmodel.profile import Profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 4


def plot(profile: Profile, path: str | Path) -> None:
    """Writes a PNG or SVG file with a panel for each collective and one for the matrix products.

    Dots are medians of points, bars span their batches, lines are `Profile.time`.

    Raises:
        MissingExtraError: matplotlib is not installed.
        QuantityError: The suffix of the file is neither .png nor .svg.
        OSError: The file cannot be written.
    """
    if problem := wrong_name(path):
        raise QuantityError(problem)
    save_figure(figure_of(profile), path, "costmodel", dpi=120)


def figure_of(profile: Profile) -> Figure:
    """The figure that `plot` writes.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    kinds = sorted({point.kind for point in profile.collectives})
    n_rows = math.ceil((len(kinds) + 1) / _COLUMNS)
    try:
        figure = new_figure(3.6 * _COLUMNS, 3.0 * n_rows)
    except ImportError as error:
        raise MissingExtraError("a picture", "plot") from error
    panels = list(figure.subplots(n_rows, _COLUMNS, squeeze=False).flat)
    for panel, kind in zip(panels, kinds, strict=False):
        for colour, n in enumerate(sorted({p.n for p in profile.collectives if p.kind == kind})):
            points = [p for p in profile.collectives if (p.kind, p.n) == (kind, n)]
            sizes = np.geomspace(
                max(1, min(p.n_bytes for p in points)), max(p.n_bytes for p in points), 200
            )
            panel.plot(sizes, profile.time(kind, n, sizes), color=f"C{colour}", linewidth=1)
            medians = np.array([p.median_s for p in points])
            low, high = (np.array([of(p.seconds) for p in points]) for of in (min, max))
            panel.errorbar(
                [p.n_bytes for p in points],
                medians,
                [medians - low, high - medians],
                fmt=".",
                color=f"C{colour}",
                elinewidth=0.5,
                label=f"group of {n}",
            )
        panel.set(title=kind, xscale="log", yscale="log", xlabel="bytes", ylabel="seconds")
        panel.legend(fontsize="small")
    panel = panels[len(kinds)]
    for colour, fit in enumerate(profile.fits.compute):
        matmuls = [p for p in profile.matmuls if p.dtype == fit.dtype]
        flops = np.geomspace(min(p.flops for p in matmuls), max(p.flops for p in matmuls), 200)
        fitted = profile.fits.launch_s + flops / profile.device.rate(fit.dtype, flops)
        panel.plot(flops, fitted, color=f"C{colour}", linewidth=1)
        panel.plot(
            [p.flops for p in matmuls],
            [p.median_s for p in matmuls],
            ".",
            color=f"C{colour}",
            label=fit.dtype,
        )
    panel.set(title="matmul", xscale="log", yscale="log", xlabel="FLOP", ylabel="seconds")
    panel.legend(fontsize="small")
    for unused in panels[len(kinds) + 1 :]:
        unused.set_axis_off()
    figure.suptitle(
        f"{profile.backend}, {profile.n_processes} devices, {profile.machine}, {profile.date}",
        fontsize="medium",
    )
    return figure
