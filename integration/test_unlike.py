"""Random clusters of unlike hosts, and the page about them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from frontends.price.device_pool import DevicePool
from frontends.search.equal_parts import equal_parts_of
from unlike.clusters import alone, cluster_of, text_of
from unlike.measured import Timed
from unlike.report import BEGIN, END, rewrite
from unlike.simulated import N_CLUSTERS, Row, row_of


def test_every_cluster_has_unlike_hosts_and_is_the_same_again() -> None:
    for seed in range(N_CLUSTERS):
        cluster = cluster_of(seed)
        assert len(set(cluster.hosts)) > 1
        assert cluster == cluster_of(seed)
        for pool in equal_parts_of(DevicePool(cluster)):
            part = alone(cluster, pool.device_ids)
            assert part.hosts == pool.hosts
            assert len(set(part.hosts)) == 1
            assert part.n_devices < cluster.n_devices


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1000, 1001, 1002, 1003])
def test_no_plan_is_slower_than_that_of_equal_hosts(seed: int) -> None:
    row = row_of(seed)
    assert row.hosts == text_of(cluster_of(seed))
    if row.alone_s is not None:
        assert row.step_s is not None
        assert row.bound_s <= row.step_s <= row.alone_s * (1 + 1e-9)


def test_the_page_has_measured_and_simulated_speedups(tmp_path: Path) -> None:
    timed = Timed("4 beside 2", 2.0, 3.0, 3.0, 4.5, 1e-7, [[3, [4, 5]], [6, [0, 1, 2, 3]]])
    rows = [
        Row(0, "4 A + 2 B", 1.0, 1.5, "4 A", 0.8, "6 on 4 A, 2 on 2 B"),
        Row(1, "4 A + 1 C", 2.0, None, "", 1.0, "8 on 4 A"),
        Row(2, "1 C + 2 C", None, None, "", 0.0, ""),
    ]
    page = tmp_path / "page.md"
    page.write_text(f"Before.\n{BEGIN}\nold\n{END}\nAfter.\n")
    record = {"timed": [asdict(timed)], "rows": [*map(asdict, rows)], "measured": "2026-01-01"}
    rewrite(page, record)
    text = page.read_text()
    assert "| 4 beside 2 | 3 on 2, 6 on 4 | 1.50 | **1.50** | 3 s |" in text
    assert "| 4 A + 2 B | 6 on 4 A, 2 on 2 B | 1 s | 1.25 | 4 A, 1.5 s | 1.50 |" in text
    assert "none fits" in text
    assert "nothing fits" in text
    assert text.startswith("Before.\n")
    assert text.endswith("After.\n")
    assert "old" not in text
