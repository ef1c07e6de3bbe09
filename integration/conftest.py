"""Settings of the integration tests: the path of their helpers, markers, Hypothesis profiles."""

import os
import sys
from pathlib import Path

import hypothesis

sys.path.insert(0, str(Path(__file__).parent))  # `import netlab`, `import constraints`

# What LLVM makes of a program is not ours to test, and takes half of the time of tests of JAX. By
# day XLA also emits fusions in its older way, which is faster, but rounds by the shape of an array.
FAST_TO_COMPILE = "--xla_backend_optimization_level=0"
if os.environ.get("HYPOTHESIS_PROFILE") != "nightly":
    FAST_TO_COMPILE += " --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FAST_TO_COMPILE}"

hypothesis.settings.register_profile("default", max_examples=100, deadline=None, derandomize=True)
hypothesis.settings.register_profile("nightly", max_examples=10_000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
