"""`picture`: draws when each host's ports are in use, and the bytes from each host to each other.

Needs the extra `plot` (matplotlib), which is imported only when a picture is drawn.
"""

from importlib.util import find_spec
from os import PathLike
from typing import Any

from shardspec.amounts import bytes_text
from shardspec.report.figure import new_figure, save_figure, wrong_name

from crossmesh.base.links import Links
from crossmesh.errors import MissingExtraError, PlanError
from crossmesh.report.totals import Timed, bytes_between, gap_text, timed
from crossmesh.transfer.plan import TransferPlan

_COLOURS = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb",
)  # fmt: skip
"""Colours of the hosts, repeated in turn: the "bright" scheme of Paul Tol, which colour-blind
readers can tell apart."""

_LABELLED = 16
"""The most hosts that get labels and numbers; with more hosts, these would overlap."""

_ROW_INCHES = 0.45
_MOST_INCHES = 12.0


def picture(plan: TransferPlan, path: str | PathLike[str], links: Links | None = None) -> None:
    """Draw a timeline of each host's two ports, and a matrix of bytes between hosts.

    A bar has the colour of the host at the other end. With the same version of matplotlib, the same
    plan gives the same file, byte for byte. Traffic inside hosts is not drawn.

    Args:
        plan: The plan.
        path: The file to write; its suffix decides the format.
        links: How fast hosts and devices are. None: the links of the plan; if it has none, times
            are in units of `t`, in which a host sends as many bytes as all tensors have together.

    Raises:
        PlanError: The suffix is not .png or .svg, or a host has no rate.
        MissingExtraError: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    check_picture(path)
    when = timed(plan, links)
    hosts = sorted({host for _, host in plan.hosts})
    height = min(_MOST_INCHES, 1.8 + _ROW_INCHES * len(hosts))
    figure = new_figure(7.5 + height, height)
    timeline, matrix = figure.subplots(1, 2, width_ratios=(7.5, height))
    _draw_timeline(timeline, when, hosts)
    _draw_matrix(matrix, plan, hosts)
    figure.suptitle(gap_text(when) if plan.tasks else "nothing is sent")
    save_figure(figure, path, "crossmesh")


def check_picture(path: str | PathLike[str]) -> None:
    """Refuse a picture that cannot be drawn, before anything is computed for it.

    Raises:
        PlanError: The suffix is not .png or .svg.
        MissingExtraError: matplotlib is not installed.
    """
    if problem := wrong_name(path):
        raise PlanError(problem)
    if find_spec("matplotlib") is None:
        raise MissingExtraError("a picture", "plot")


def _draw_timeline(axes: Any, when: Timed, hosts: list[int]) -> None:
    row = {host: i for i, host in enumerate(hosts)}
    lanes: list[list[tuple[float, float, str]]] = [[] for _ in range(2 * len(hosts))]
    for hop in when.timeline.hops:
        sender, receiver = row[hop.sender], row[hop.receiver]
        for lane, other in ((2 * sender, receiver), (2 * receiver + 1, sender)):
            colour = _COLOURS[other % len(_COLOURS)]
            lanes[lane].append((hop.start_s, hop.stop_s - hop.start_s, colour))
    for lane, bars in enumerate(lanes):
        axes.broken_barh(
            [(start_s, duration_s) for start_s, duration_s, _ in bars],
            (lane + 0.1, 0.8),
            facecolors=[colour for _, _, colour in bars],
            edgecolor="white",
            linewidth=0.3,
        )
    for i in range(1, len(hosts)):
        axes.axhline(2 * i, color="#dddddd", linewidth=0.5)
    if len(hosts) <= _LABELLED:
        labels = [f"{way} {host}" for host in hosts for way in ("out of", "into")]
        axes.set_yticks([lane + 0.5 for lane in range(len(labels))], labels, fontsize=8)
    else:
        axes.set_yticks([])
        axes.set_ylabel(f"{len(hosts)} hosts, out and in")
    axes.set_ylim(2 * len(hosts), 0)
    axes.set_xlim(0.0, when.timeline.time_s or 1.0)
    axes.axvline(when.timeline.lower_bound_s, color="black", linewidth=1, linestyle=":")
    axes.set_xlabel("t; dotted: lower bound" if when.in_t else "seconds; dotted: lower bound")


def _draw_matrix(axes: Any, plan: TransferPlan, hosts: list[int]) -> None:
    between = bytes_between(plan)
    most = max(between.values(), default=1)
    shades = [[between[a, b] / most for b in hosts] for a in hosts]
    axes.imshow(shades, cmap="Blues", vmin=0.0, vmax=2.0)  # black text stays readable
    if len(hosts) <= _LABELLED:
        ticks = range(len(hosts))
        # The labels have the colours of the hosts in the timeline.
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(ticks, [str(host) for host in hosts])
            for i, label in enumerate(axis.get_ticklabels()):
                label.set_color(_COLOURS[i % len(_COLOURS)])
                label.set_fontweight("bold")
        for (a, b), n_bytes in between.items():
            where = hosts.index(b), hosts.index(a)
            axes.text(*where, bytes_text(n_bytes), ha="center", va="center", fontsize=7)
    else:
        axes.set_xticks([])
        axes.set_yticks([])
    axes.set_xlabel("to host")
    axes.set_ylabel("from host")
