"""Random JAX training programs do what `jax.jit` of them does, call after call, or are refused."""

import os

import pytest
from frontends.jax.fuzzing import ProgramCall, TrainingProgram, check, programs
from hypothesis import HealthCheck, given, settings

EXAMPLES = 32 if os.environ.get("HYPOTHESIS_PROFILE", "default") == "default" else 1_500


@settings(max_examples=EXAMPLES, suppress_health_check=[*HealthCheck])
@given(programs())
def test_random_programs(program: TrainingProgram) -> None:
    check(program)


@pytest.mark.parametrize(
    "program",
    [
        TrainingProgram(calls=(ProgramCall(), ProgramCall(rows=3), ProgramCall(mode="sin"))),
        TrainingProgram(
            ("noise",),
            key="typed",
            strategy="zero",
            microbatches=1,
            calls=(ProgramCall(), ProgramCall()),
        ),
    ],
)
def test_programs_that_were_wrong_once(program: TrainingProgram) -> None:
    assert check(program) == len(program.calls)
