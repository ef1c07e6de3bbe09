"""Jobs of several processes, of which some are killed and started again."""

import os
import sys
from collections import defaultdict
from pathlib import Path

import launching
import pytest

RANKS = Path(__file__).parent / "sync_ranks.py"
N_VERSIONS, SIZES = 12, {"a": 2, "b": 1}


NIGHT = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


@pytest.mark.parametrize(
    ("seed", "kills"), [(0, 0), (1, 3), *((seed, 6) for seed in range(2, 22 if NIGHT else 2))]
)
def test_engines_see_whole_versions_alone_whoever_is_killed(tmp_path, seed, kills):
    ended = launching.run(
        [sys.executable, RANKS, str(tmp_path), str(seed), str(kills)], deadline_s=200
    )
    errors = "\n".join(path.read_text() for path in tmp_path.glob("error-*"))
    killed = (tmp_path / "killed").read_text().split()
    unexpected = [
        path.name
        for path in tmp_path.glob("error-*")
        if not any(path.name.startswith(f"error-{job}-") for job in killed)
    ]
    assert not unexpected, errors
    assert ended.status == 0, ended.output + errors
    logs = defaultdict(dict)
    for path in tmp_path.glob("log-*"):
        _, name, start, rank = path.name.split("-")
        lines = [line.split() for line in path.read_text().splitlines()]
        assert all(whole == "True" for _, _, whole in lines), path
        logs[name, int(start)][int(rank)] = [(int(call), int(v)) for call, v, _ in lines]
    for (name, start), by_rank in logs.items():
        shortest = min(map(len, by_rank.values()))
        assert len({tuple(log[:shortest]) for log in by_rank.values()}) == 1
        versions = [v for _, v in max(by_rank.values(), key=len)]
        assert versions == sorted(set(versions)), (name, start)
    for name, size in SIZES.items():
        last = max(start for job, start in logs if job == name)
        assert len(logs[name, last]) == size
        assert logs[name, last][0][-1][1] >= N_VERSIONS
