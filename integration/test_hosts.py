"""A step of four processes on two emulated hosts equals that of a single device.

These tests do not check times: `python integration/hosts` measures them, on a machine without other
work, for docs/several_processes.md.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import netlab
import pytest
from hosts.job import N_HOSTS, SMALL
from hosts.measure import Measured, lab, measure
from hosts.report import BEGIN, END, as_json, record, rewrite

MISSING = netlab.supported()


@pytest.mark.skipif(bool(MISSING), reason=f"no lab can be brought up: {MISSING}")
def test_four_processes_on_two_hosts_compute_the_single_device_step() -> None:
    with lab(f"ho{os.getpid()}") as hosts:
        seen = measure(hosts, SMALL)
        names = [hosts.hostname(host) for host in range(N_HOSTS) for _ in range(2)]
    assert list(seen.hosts) == names
    assert seen.worst <= 1e-5
    n_steps = len(SMALL.schedules) * (2 + SMALL.rounds)
    sent = [n_bytes for phase, _, _, n_bytes in seen.transfers if phase in ("forward", "backward")]
    assert len(sent) == 2
    assert seen.crossed_bytes > n_steps * SMALL.microbatches * sum(sent)


def test_the_table_has_the_measured_and_the_simulated_ratio(tmp_path: Path) -> None:
    seen = Measured(
        hosts=("a", "b"),
        worst=1e-8,
        step_s={"1f1b": (3.0, 3.0, 3.3), "eager-1f1b": (2.0, 2.0, 2.2)},
        compute_s={"forward": (1.0, 1.0), "backward": (2.0, 2.0), "apply": (0.0, 0.0)},
        transfers=(("forward", 0, 1, 3), ("backward", 1, 0, 3)),
        crossed_bytes=0,
    )
    recorded = record({"date": "2026-01-01", "versions": "jax 1"}, SMALL, "16", seen)
    # Computed by hand: forwards of 1 s, backwards of 2 s, messages of 1.5 s, four microbatches.
    assert recorded["schedules"]["1f1b"]["simulated_s"] == pytest.approx(21.0)
    page = tmp_path / "page.md"
    page.write_text(f"Before.\n{BEGIN}\nold\n{END}\nAfter.\n")
    rewrite(page, json.loads(as_json(recorded)))
    text = page.read_text()
    assert text.startswith("Before.\n")
    assert text.endswith("After.\n")
    assert "old" not in text
    assert "**1.50**" in text
