"""`python -m crossmesh`."""

import sys

from crossmesh.cli import main

sys.exit(main())
