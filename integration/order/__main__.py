"""`python integration/order NAME...` prints the plans of these cases, made in this order."""

import json
import sys
from pathlib import Path

if not __package__:  # run by its folder's name: make `import order` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from order.plans import CASES

print(json.dumps([CASES[name]().to_json() for name in sys.argv[1:]]))
