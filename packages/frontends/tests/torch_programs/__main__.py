"""Run programs and print their verdicts; see the package's docstring."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

from torch_programs.corpus import PROGRAMS
from torch_programs.worker import Worker


def main() -> int:
    """Exit with 1 if a verdict is another than it has to be."""
    parser = argparse.ArgumentParser(prog="torch_programs", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; all programs without")
    parser.add_argument("--exact", action="store_true", help="whole names are given")
    parser.add_argument("--bad", action="store_true", help="print only what is not as it should be")
    parser.add_argument("--save", type=Path, help="verdicts as JSON")
    given = parser.parse_args()
    chosen = [
        n
        for n in PROGRAMS
        if not given.names
        or (n in given.names if given.exact else any(part in n for part in given.names))
    ]
    worker, found = Worker(), {}
    for name in chosen:
        begin = time.perf_counter()
        verdict = found[name] = worker.judge(name)
        good = PROGRAMS[name].allows(verdict.name)
        if not (good and given.bad):
            seconds = time.perf_counter() - begin
            mark = "  " if good else "! "
            print(f"{mark}{name:42} {verdict.name:7} {seconds:4.1f} s  {verdict.detail[:600]}")
            sys.stdout.flush()
    print(dict(Counter(v.name for v in found.values())))
    wrong = [n for n, v in found.items() if not PROGRAMS[n].allows(v.name)]
    print(f"{len(wrong)} of {len(found)} not as they have to be")
    if given.save:
        given.save.write_text(json.dumps({n: [v.name, v.detail] for n, v in found.items()}))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
