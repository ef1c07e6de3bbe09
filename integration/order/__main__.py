"""Prints the plans of cases, made in this order: `python integration/order NAME...`."""

import json
import sys
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import order` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from order.plans import CASES

print(json.dumps([CASES[name]().to_json() for name in sys.argv[1:]]))
