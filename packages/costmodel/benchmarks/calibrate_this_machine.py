"""Calibrates this machine with every backend and writes the end of docs/calibration.md.

    python packages/costmodel/benchmarks/calibrate_this_machine.py            # six minutes
    python packages/costmodel/benchmarks/calibrate_this_machine.py --render   # only write the page

Profiles are kept in docs/results/calibration, pictures in docs/pictures.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from costmodel.cli import main
from costmodel.profile import Profile
from costmodel.report.plot import plot

DOCS = Path(__file__).resolve().parents[3] / "docs"
RESULTS = DOCS / "results" / "calibration"
PAGE = DOCS / "calibration.md"
MARK = "<!-- From here on written by packages/costmodel/benchmarks/calibrate_this_machine.py. -->\n"
# Ranks of MPI wait actively: with more ranks than cores, the scheduler would be measured.
PROCESSES = {"mpi": 2, "torch": 4, "jax": 4}


def calibrate() -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    for backend, n in PROCESSES.items():
        out = str(RESULTS / f"{backend}.json")
        if main(["calibrate", "--backend", backend, "--n-processes", str(n), "--out", out]):
            sys.exit(f"no profile of {backend}")


def rows(profile: Profile) -> Iterator[str]:
    link = profile.fits.link
    by_kind = [(of.kinds[0], of.algorithms[0], of) for of in profile.fits.collectives]
    for kind, algorithm, of in [("all, one link", "", link), *by_kind]:
        curves = [c for c in profile.fits.curves if c.kind == kind or of is link]
        curve_error = median(c.median_error for c in curves)
        worst = max(c.median_error for c in curves)
        yield (
            f"| {profile.backend} | {kind} | {algorithm} "
            f"| {of.latency_s.value * 1e6:.1f} ({of.latency_s.low * 1e6:.1f} to "
            f"{of.latency_s.high * 1e6:.1f}) "
            f"| {1e-6 / of.s_per_byte.value:.0f} ({1e-6 / of.s_per_byte.high:.0f} to "
            f"{1e-6 / of.s_per_byte.low:.0f}) "
            f"| {of.r_squared:.3f} | {of.median_error:.1%} | {curve_error:.1%} | {worst:.1%} |"
        )


def render() -> None:
    profiles = [Profile.from_json((RESULTS / f"{b}.json").read_text()) for b in PROCESSES]
    lines = ["", "### Collectives", ""]
    lines += [
        "| backend | collective | algorithm | alpha, us | 1/beta, MB/s | R² "
        "| error | error of curves | worst curve |",
        "| --- | --- | --- | --: | --: | --: | --: | --: | --: |",
        *(row for profile in profiles for row in rows(profile)),
        "",
        "### Compute",
        "",
        "| backend | dtype | peak, GFLOP/s | error | launch, us | memory, GB/s |",
        "| --- | --- | --: | --: | --: | --: |",
        *(
            f"| {profile.backend} | {of.dtype} | {of.peak_flops_per_s / 1e9:.1f} "
            f"| {of.median_error:.1%} | {profile.fits.launch_s * 1e6:.2f} "
            f"| {profile.fits.memory_bandwidth_bytes_per_s / 1e9:.1f} |"
            for profile in profiles
            for of in profile.fits.compute
        ),
        "",
    ]
    for profile in profiles:
        picture = f"pictures/calibration-{profile.backend}.png"
        plot(profile, DOCS / picture)
        versions = ", ".join(f"{name} {version}" for name, version in profile.versions)
        lines += [
            f"`{profile.backend}`, {profile.n_processes} processes or devices, on "
            f"{profile.machine}, {profile.date}; {versions}. Dots are medians, bars span all "
            f"batches, lines are `Profile.time`. [Profile](results/calibration/"
            f"{profile.backend}.json).",
            "",
            f"![Times and fits of {profile.backend}]({picture})",
            "",
        ]
    written, _, _ = PAGE.read_text().partition(MARK)
    PAGE.write_text(written + MARK + "\n".join(lines))


if __name__ == "__main__":
    if "--render" not in sys.argv[1:]:
        calibrate()
    render()
