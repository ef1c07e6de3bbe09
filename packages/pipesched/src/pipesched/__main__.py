"""The command line: `python -m pipesched show 1f1b eager-1f1b --stages 4 --microbatches 8`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pipesched.costs import Costs
from pipesched.draw import draw, legend
from pipesched.errors import PipeschedError
from pipesched.generators import NAMES, make
from pipesched.plot import plot
from pipesched.simulate import simulate


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with status 2 and one sentence if it is used wrongly."""
    parser = argparse.ArgumentParser(prog="python -m pipesched", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    show = commands.add_parser("show", help="draw the timelines of schedules, to one scale")
    show.add_argument("schedules", nargs="+", choices=NAMES, metavar=f"{{{','.join(NAMES)}}}")
    show.add_argument("--stages", type=int, required=True)
    show.add_argument("--microbatches", type=int, required=True)
    show.add_argument("--forward", type=float, default=1.0, help="seconds (default: %(default)s)")
    show.add_argument("--backward", type=float, default=2.0, help="seconds (default: %(default)s)")
    show.add_argument("--comm", type=float, default=0.0, help="seconds (default: %(default)s)")
    show.add_argument("--no-overlap", action="store_true", help="do not compute while sending")
    show.add_argument("--width", type=int, default=96, help="columns (default: %(default)s)")
    show.add_argument("--plot", metavar="FILE", help="also write a PNG or SVG (of one schedule)")
    options = parser.parse_args(arguments)
    if options.plot and len(options.schedules) > 1:
        show.error(f"--plot draws one schedule; got {len(options.schedules)}")
    try:
        costs = Costs(
            options.forward,
            options.backward,
            transfer_s=options.comm,
            overlap=not options.no_overlap,
        )
        timelines = [
            simulate(
                make(name, options.stages, options.microbatches),
                costs,
            )
            for name in options.schedules
        ]
        span_s = max(timeline.makespan_s for timeline in timelines)
        for timeline in timelines:
            print(draw(timeline, options.width, span_s))
        print(legend(*timelines))
        if options.plot:
            plot(timelines[0], options.plot)
    except (PipeschedError, OSError) as error:
        show.error(str(error))


if __name__ == "__main__":
    main()
