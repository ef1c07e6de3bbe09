"""Reports how far a search is: to a bar on standard error, or to a function of the caller."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]
"""Called with the number of parts of some work that are done, and the number that there are."""


@contextmanager
def reporting(progress: Progress | bool | None, what: str) -> Iterator[Progress | None]:
    """The function to call with the progress of some work; None if progress is not reported.

    Args:
        progress: True for a bar on standard error while the work lasts; if standard error is no
            terminal, for a line after each tenth. A function is called itself. False or None for
            no progress.
        what: What the parts are and what is done to them, such as "stages priced".
    """
    if progress is not True:
        yield progress or None
        return
    # rich is imported here, as it takes as long as all other imports together.
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
            # One part more than `total` stands for the work after the last part, such as the
            # search: the bar is not full before it ends, and its clock goes on.
            bars.update(bar, description=text, completed=done, total=total + 1)
            if tenth != 10 * done // total:
                tenth = 10 * done // total
                if not is_live:
                    console.print(text)

        yield report
