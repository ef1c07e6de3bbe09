"""Run what has not passed as it is: `python integration/nightly FOLDER [--times 50] [--only TEXT]`.

FOLDER is where it is kept what passed, and the output of what failed. By day `--times 2 --only
test_processes --only burner` tries a few.
"""

import argparse
import datetime
import os
import re
import subprocess
import sys
import time
from pathlib import Path

if not __package__:  # run by its folder's name: make `import nightly` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from contextlib import nullcontext

from launching import StillRunningError, burner, run

from nightly.entries import Entry, entries
from nightly.memory import Memory
from nightly.night import Outcome, night
from nightly.report import gather, keep, read
from nightly.sources import OWN_PAGES, Sources, versions

ROOT = Path(__file__).resolve().parents[2]
LONGEST_S = 4 * 3600.0
"""Of one file of tests: what is not done by then hangs."""


def run_once(entry: Entry) -> Outcome:
    """Run an entry once, in a process of its own."""
    start_s = time.monotonic()
    try:
        with burner() if entry.is_beside_burner else nullcontext():
            ended = run(entry.command, deadline_s=LONGEST_S, env=entry.environment, cwd=ROOT)
    except StillRunningError as error:
        return Outcome(False, time.monotonic() - start_s, str(error))
    return Outcome(ended.status == 0, time.monotonic() - start_s, ended.output)


def commit() -> str:
    """Of the tree, and whether files differ from it."""
    head = _git("rev-parse", "HEAD").strip()
    changed = [line[3:] for line in _git("status", "--porcelain").splitlines()]
    return head + ("+changes" if set(changed) - {*OWN_PAGES} else "")


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout


def main() -> int:
    """The exit status: 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", type=int, default=50, help="of tests of processes")
    parser.add_argument("--only", action="append", default=[], help="what names have in them")
    parser.add_argument("--at-once", type=int, default=min(2, os.cpu_count() or 1))
    given = parser.parse_args()
    found = versions()
    sources = Sources(ROOT, found)
    every = entries(sources, given.times)
    memory = Memory(given.folder / "passed.json")
    try:
        failed = night(
            [entry for entry in every if all(text in entry.name for text in given.only)],
            memory,
            run_once,
            lambda text: print(text, flush=True),
            commit=commit(),
            date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
            at_once=given.at_once,
        )
    finally:  # also of a night that is cut
        keep(gather(every, memory, found, read(ROOT / "docs")), ROOT / "docs")
    for name, output in failed.items():
        path = given.folder / f"{re.sub(r'[^a-z0-9_]+', '-', name)}.log"
        path.write_text(output)
        print(f"\n{name} failed, its output is in {path}; it ends:\n{output[-3000:]}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
