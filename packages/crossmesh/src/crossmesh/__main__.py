"""`python -m crossmesh`."""

import sys

from crossmesh.cli.commands import main

sys.exit(main())
