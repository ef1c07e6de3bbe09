"""The path to the helpers beside the benchmarks."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # `import cases`, `import torch_planner`
