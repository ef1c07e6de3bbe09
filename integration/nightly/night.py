"""Runs the entries that have not passed yet, and reports the progress."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from nightly.entries import Entry
from nightly.memory import Memory


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run of an entry."""

    passed: bool
    seconds: float
    output: str = ""


def night(
    entries: Sequence[Entry],
    memory: Memory,
    run: Callable[[Entry], Outcome],
    say: Callable[[str], None],
    *,
    commit: str,
    date: str,
    at_once: int = 1,
) -> dict[str, str]:
    """Run all entries that have not passed as often as they have to.

    Args:
        entries: All entries.
        memory: What passed before; each run is recorded in it.
        run: Runs an entry once.
        say: Called with each line of progress.
        commit: The commit of the working tree.
        date: The date of today.
        at_once: How many entries run at a time; those beside a burner run alone.

    Returns:
        The output of the entries that failed, by name.
    """
    todo = [entry for entry in entries if memory.passed(entry) < entry.times]
    say(f"{len(entries) - len(todo)} of {len(entries)} have passed as they are")
    failed: dict[str, str] = {}
    numbers = {entry.name: number for number, entry in enumerate(entries, start=1)}

    def again(entry: Entry) -> None:
        while entry.name not in failed and memory.passed(entry) < entry.times:
            note(entry, run(entry))

    def note(entry: Entry, outcome: Outcome) -> None:
        memory.note(entry, outcome.passed, outcome.seconds, commit, date)
        if not outcome.passed:
            failed[entry.name] = outcome.output
        how = "passed" if outcome.passed else "FAILED"
        if entry.times > 1 and outcome.passed:
            how = f"passed {memory.passed(entry)} of {entry.times} times"
        left_s = _left_s([e for e in todo if e.name not in failed], memory, at_once)
        say(
            f"{numbers[entry.name]} of {len(entries)}  {entry.name}: {how}, "
            f"{outcome.seconds:.0f} s; {left_s / 60:.0f} min left"
        )

    with ThreadPoolExecutor(at_once) as pool:
        running: dict[Future[Outcome], Entry] = {}
        for entry in (e for e in todo if not e.is_beside_burner):
            if len(running) == at_once:
                _note_first(running, note)
            running[pool.submit(run, entry)] = entry
        while running:
            _note_first(running, note)
    for entry in (e for e in todo if e.is_beside_burner):
        again(entry)
    return failed


def _note_first(
    running: dict[Future[Outcome], Entry], note: Callable[[Entry, Outcome], None]
) -> None:
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        note(running.pop(future), future.result())


def _left_s(entries: Sequence[Entry], memory: Memory, at_once: int) -> float:
    """The estimated time that is left: each entry takes as long as last time.

    An entry that has never run counts as the mean of the others.
    """
    known = [s for entry in entries if (s := memory.seconds(entry)) is not None]
    usual_s = statistics.mean(known) if known else 0.0
    left_s = 0.0
    for entry in entries:
        seconds = memory.seconds(entry)
        n = entry.times - memory.passed(entry)
        share = 1 if entry.is_beside_burner else at_once
        left_s += max(n, 0) * (usual_s if seconds is None else seconds) / share
    return left_s
