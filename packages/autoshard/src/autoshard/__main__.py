"""`python -m autoshard`."""

import sys

from autoshard.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
