"""How far a search is: a bar on standard error, or whatever the caller makes of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]
"""Told how many parts of some work are done, and how many there are."""


@contextmanager
def reporting(progress: Progress | bool | None, what: str) -> Iterator[Progress | None]:
    """What to tell the progress of some work to, if anything.

    Args:
        progress: True for a bar on standard error while the work lasts; where that is no terminal,
            for a line at each tenth. Or what is told itself, or False or None for nothing.
        what: What the parts are and what is done to them, such as "stages priced".
    """
    if progress is not True:
        yield progress or None
        return
    # Here, as it takes as long to import as all else.
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True, highlight=False)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    is_live = console.is_interactive or console.is_jupyter
    tenth = 0
    with Bars(*columns, console=console, transient=True, disable=not is_live) as bars:
        bar = bars.add_task(what, total=None)

        def report(done: int, total: int) -> None:
            nonlocal tenth
            text = f"{what}: {done:,} of {total:,}"
            # What comes after the last part, such as the search, is one more; the clock goes on.
            bars.update(bar, description=text, completed=done, total=total + 1)
            if tenth != 10 * done // total:
                tenth = 10 * done // total
                if not is_live:
                    console.print(text)

        yield report
