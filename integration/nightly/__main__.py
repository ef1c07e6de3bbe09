"""Run the tests that have not passed on the present sources.

Usage: `python integration/nightly FOLDER [--times 50] [--only TEXT]`. FOLDER is for the record of
what passed, and for the output of what failed. By day, `--times 2 --only test_processes --only
burner` tries a few.
"""

import argparse
import datetime
import os
import re
import subprocess
import sys
import time
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import nightly` find it
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
"""The time limit of one test file; if it is not done by then, it hangs."""


def run_once(entry: Entry) -> Outcome:
    """Run an entry once, in a separate process."""
    start_s = time.monotonic()
    try:
        with burner() if entry.is_beside_burner else nullcontext():
            ended = run(entry.command, deadline_s=LONGEST_S, env=entry.environment, cwd=ROOT)
    except StillRunningError as error:
        return Outcome(False, time.monotonic() - start_s, str(error))
    return Outcome(ended.status == 0, time.monotonic() - start_s, ended.output)


def commit() -> str:
    """The commit of the working tree, with "+changes" if files differ from it."""
    head = _git("rev-parse", "HEAD").strip()
    changed = [line[3:] for line in _git("status", "--porcelain").splitlines()]
    return head + ("+changes" if set(changed) - {*OWN_PAGES} else "")


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout


def main() -> int:
    """Run a night; returns the exit status, which is 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--times", type=int, default=50, help="how often tests of processes run (default: 50)"
    )
    parser.add_argument(
        "--only", action="append", default=[], help="run only entries with this text in their name"
    )
    parser.add_argument("--at-once", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    present = versions()
    sources = Sources(ROOT, present)
    every = entries(sources, options.times)
    memory = Memory(options.folder / "passed.json")
    try:
        failed = night(
            [entry for entry in every if all(text in entry.name for text in options.only)],
            memory,
            run_once,
            lambda text: print(text, flush=True),
            commit=commit(),
            date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
            at_once=options.at_once,
        )
    finally:  # also if the night is interrupted
        keep(gather(every, memory, present, read(ROOT / "docs")), ROOT / "docs")
    for name, output in failed.items():
        path = options.folder / f"{re.sub(r'[^a-z0-9_]+', '-', name)}.log"
        path.write_text(output)
        print(f"\n{name} failed, its output is in {path}; it ends:\n{output[-3000:]}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
