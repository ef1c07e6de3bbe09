"""The hosts of a launcher's processes are found as they are: their number, speeds and network."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import netlab
import pytest
from costmodel import Cluster
from costmodel.calibrate.launch import ONE_THREAD
from costmodel.calibrate.measure import MATMUL_SIZES
from netlab import Lab
from unlike import shares

MISSING = netlab.supported() or shares.supported()
TORCHRUN = Path(sys.executable).with_name("torchrun")
PROCESSES, SHARES = (2, 1), (0.5, 0.12)
"""By host its processes, and the share of a core that each has: far apart, as other tests run."""


@pytest.mark.nightly  # a minute; by day, test_cli.py of costmodel probes one host
@pytest.mark.skipif(bool(MISSING), reason=f"no lab can be brought up: {MISSING}")
def test_unlike_hosts_and_the_network_between_them_are_found(tmp_path: Path) -> None:
    out = tmp_path / "cluster.json"
    probe = ["probe", "--backend", "torch", "--name", "lab", "--out", str(out)]
    with Lab(hosts=2, rate="200mbit", name=f"pr{os.getpid()}") as hosts, ExitStack() as stack:
        started = []
        for host, (n, share) in enumerate(zip(PROCESSES, SHARES, strict=True)):
            put = stack.enter_context(shares.share_of_a_core(f"pr{os.getpid()}-{host}", n * share))
            command = [
                *(TORCHRUN, "--nnodes", 2, "--node-rank", host, "--nproc-per-node", n),
                *("--master-addr", hosts.hostname(0), "--master-port", 29500),
                *("-m", "costmodel", *probe),
            ]
            started.append(
                hosts.popen(
                    host,
                    command,
                    env={**os.environ, **ONE_THREAD},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            put(started[-1].pid)
        said = [process.communicate(timeout=240) for process in started]
    assert [process.returncode for process in started] == [0, 0], "".join(
        s[-3000:] for each in said for s in each
    )
    cluster = Cluster.from_json(out.read_text())
    assert [host.n_devices for host in cluster.hosts] == [*PROCESSES]
    fast, slow = (host.device.rate("float32", 2 * MATMUL_SIZES[-1] ** 3) for host in cluster.hosts)
    assert fast > 1.5 * slow  # of the longest product: periods of a share blur short ones
    assert cluster.inter_host.bandwidth_bytes_per_s == pytest.approx(200e6 / 8, rel=0.2)
