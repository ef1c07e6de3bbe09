"""Random training programs do what eager PyTorch does, or are refused in time."""

import os

from frontends.torch.fuzzing import Written, judge, programs
from hypothesis import event, given, settings

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


@settings(max_examples=1500 if NIGHTLY else 8)
@given(programs())
def test_random_programs_are_equal_or_refused(written: Written) -> None:
    verdict = judge(written.program(), devices=written.devices, **written.options)
    event(verdict.name)
    assert verdict.name in ("equal", "typed"), f"{verdict.name}: {verdict.detail}"
