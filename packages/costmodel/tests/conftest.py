"""Hypothesis profiles, chosen by HYPOTHESIS_PROFILE; the path to the helpers of the tests."""

import os
import sys
from pathlib import Path

from hypothesis import settings

settings.register_profile("default", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=10_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

sys.path.insert(0, str(Path(__file__).parent))  # `import simulated`
