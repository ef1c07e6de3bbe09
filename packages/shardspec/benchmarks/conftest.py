"""Adds the helpers beside the benchmarks to the import path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # `import cases`, `import torch_planner`
