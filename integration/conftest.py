"""Settings of the integration tests: the path of their helpers, markers, Hypothesis profiles."""

import os
import sys
from pathlib import Path

import hypothesis

sys.path.insert(0, str(Path(__file__).parent))  # `import netlab`, `import constraints`

# What LLVM makes of a program is not ours to test, and takes much of the time of these tests.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0"

hypothesis.settings.register_profile("default", max_examples=100, deadline=None, derandomize=True)
hypothesis.settings.register_profile("nightly", max_examples=10_000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
