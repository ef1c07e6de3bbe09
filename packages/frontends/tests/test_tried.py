"""A library of a version that was not tried is named at import."""

import re
import warnings

import pytest
from frontends.base.tried import TRIED, tell_untried


@pytest.mark.parametrize("name", TRIED)
def test_versions_that_were_tried_are_not_mentioned(name: str) -> None:
    first, last = TRIED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for version in (first, f"{first}.0+cpu", f"{last}.7", f"{last}.0rc1"):
            tell_untried(name, version)


@pytest.mark.parametrize("version", ["2.9.1", "2.12.0+cpu", "2.100.0", "3.0", "unknown"])
def test_others_are(version: str) -> None:
    with pytest.warns(UserWarning, match=rf"torch 2.13 to .*not with {re.escape(version)}"):
        tell_untried("torch", version)
