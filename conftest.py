"""The path to what tests of all packages use: `import launching`, to start processes."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "integration"))
