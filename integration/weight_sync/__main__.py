"""Measures and writes docs/weight_sync.md's table: `python integration/weight_sync [MIB] [RATE]`.

`nox -s sync` installs the requirements and calls it. It has to run as root, or by
`integration/netlab/netlab rootless --`. By default it takes some five minutes; meanwhile, do no
other work.
"""

import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

if not __package__:  # run by the name of the folder: make `import weight_sync` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from netlab import Lab, parse_rate
from ranking.measure import ENVIRONMENT, PORT

from weight_sync.rank import shapes

RANK = Path(__file__).with_name("rank.py")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "weight_sync.md"
BEGIN, END = "<!-- Written by `nox -s sync` from here -->", "<!-- to here. -->"
HOSTS = (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3)
"""The host of each process: two of the trainer, and one for each replica of the engine."""
VERSIONS, BASELINE_VERSIONS = 5, 3


def main(mib: int, rate: str) -> None:
    """Measure, and write the table."""
    with Lab(hosts=4, rate=rate, name="weightsync") as lab, tempfile.TemporaryDirectory() as folder:
        job = {"mib": mib, "versions": VERSIONS, "baseline_versions": BASELINE_VERSIONS}
        Path(folder, "job.json").write_text(json.dumps(job))
        meet = f"{lab.ip(0)}:{PORT}"
        processes = [
            lab.popen(
                host,
                [sys.executable, RANK, folder, rank, meet],
                env={**os.environ, **ENVIRONMENT},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank, host in enumerate(HOSTS)
        ]
        said = [process.communicate(timeout=3000)[0] for process in processes]
        if any(process.returncode for process in processes):
            sys.exit("\n".join(said))
        seen = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(len(HOSTS))]
    times = {
        name: [
            max(rank[name][i][1] for rank in seen) - max(rank[name][i][0] for rank in seen)
            for i in range(len(seen[0][name]))
        ]
        for name in seen[0]
    }
    n_elements = sum(rows * columns for rows, columns in shapes(mib).values())
    n_bytes = 2 * n_elements
    bound_s = n_bytes / (parse_rate(rate) / 8)
    arrived = {name: median(of[2] for of in seen[-1][name]) for name in seen[0]}
    lines = [
        f"{len(shapes(mib))} weights, {4 * n_elements / 2**20:.0f} MiB in float32, which arrive as "
        f"{n_bytes / 2**20:.0f} MiB of bfloat16; {rate} for each host; "
        f"{datetime.date.today()}:",
        "",
        "| method | versions | median | worst | of the bound | beside ours | bytes, of the bound |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {name} | {len(of)} | {median(of):.2f} s | {max(of):.2f} s | "
            f"{median(of) / bound_s:.2f} | {median(of) / median(times['ours']):.2f} | "
            f"{arrived[name] / n_bytes:.2f} |"
            for name, of in times.items()
        ),
        "",
        f"The bound is {bound_s:.2f} s: each of the two hosts of engines receives every weight "
        "once. Bytes are those that one of them receives, with all headers.",
    ]
    print(*lines, sep="\n")
    if PAGE.exists():
        before, _, rest = PAGE.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text("\n".join([f"{before}{BEGIN}", "", *lines, "", f"{END}{after}"]))


if __name__ == "__main__":
    mib, rate = [*sys.argv[1:3], *("256", "200mbit")[len(sys.argv) - 1 :]]
    main(int(mib), rate)
