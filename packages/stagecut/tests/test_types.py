import math

import pytest
from stagecut import InvalidInputError, StageCost


@pytest.mark.parametrize(
    "values", [(-1.0, 0, 0), (math.inf, 0, 0), (math.nan, 0, 0), (1.0, -1, 0), (1.0, 0, -1)]
)
def test_rejects_a_cost_that_is_no_time_or_no_size(values):
    with pytest.raises(InvalidInputError, match="return None for a stage that cannot run; got"):
        StageCost(*values)
