"""`python -m stagecut`."""

import sys

from stagecut.cli.commands import main

sys.exit(main())
