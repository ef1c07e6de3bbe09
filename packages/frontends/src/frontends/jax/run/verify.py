"""Compare compiled programs with the plan: what they send, and the memory that they need."""

from __future__ import annotations

from collections import Counter

from shardspec.amounts import bytes_text

from frontends.errors import VerificationError
from frontends.jax.lower.hlo import collectives_of
from frontends.jax.run.runtime import Runtime
from frontends.program.liveness import Peaks, peaks_of
from frontends.run.verify import MEMORY_TOLERANCE, planned_collectives
from frontends.step.step import PHASE_NAMES


def check_collectives(runtime: Runtime) -> int:
    """Check that the compiled programs communicate exactly what the plan says.

    Returns:
        How many collectives the programs contain; of this process, where there are several.

    Raises:
        VerificationError: Kind, groups, bytes or count differ somewhere.
    """
    # A backward may be in two chunks, one of them with forward: all of these are counted together.
    by_length = sorted(runtime.program.chunks, key=lambda chunk: len(chunk.phases))
    together = {(c.stage, phase): c.phases for c in by_length for phase in c.phases}
    compiled: dict[tuple[int, tuple[int, ...]], Counter[tuple[object, ...]]] = {}
    for chunk, program in zip(runtime.program.chunks, runtime.programs, strict=True):
        if program is None:  # another process runs and checks it
            continue
        phases = together[chunk.stage, chunk.phase]
        found = compiled.setdefault((chunk.stage, phases), Counter())
        found.update(collectives_of(program.as_text()))
    for (stage, phases), found in compiled.items():
        planned = planned_collectives(runtime.plan, stage, phases)
        if found != planned:
            names = " and ".join(PHASE_NAMES[phase] for phase in phases)
            raise VerificationError(
                "compiled programs must communicate what the plan says; "
                f"{names} of stage {stage} has besides the plan "
                f"{dict(found - planned)} and lacks {dict(planned - found)}"
            )
    return sum(sum(found.values()) for found in compiled.values())


def measured_peaks(runtime: Runtime) -> Peaks:
    """The most that each device holds while a step runs, by XLA's account of its programs.

    What lies between the instructions is counted from shapes; what a program takes besides its
    operands is what XLA has laid out: temporaries, and results that lie over no operand.
    """

    def program_bytes(index: int) -> int:
        if runtime.programs[index] is None:  # another process runs it
            return 0
        found = runtime.programs[index].memory_analysis()
        new = found.output_size_in_bytes - found.alias_size_in_bytes
        return int(found.temp_size_in_bytes + new)

    return peaks_of(runtime.program, donate=runtime.donate, program_bytes=program_bytes)


def check_memory(runtime: Runtime) -> float:
    """Check that the compiled programs need no more memory than was planned.

    Args:
        runtime: One whose state is given away: a plan has no room for the state of before.

    Returns:
        The largest share of a stage's planned memory that is needed.

    Raises:
        VerificationError: A stage needs more than `MEMORY_TOLERANCE` above its plan.
    """
    largest = 0.0
    stages = zip(runtime.plan.stages, measured_peaks(runtime).stages, strict=True)
    for index, (stage, peak) in enumerate(stages):
        largest = max(largest, peak.n_bytes / stage.memory_bytes)
        if largest > 1 + MEMORY_TOLERANCE:
            raise VerificationError(
                f"compiled programs must need at most {MEMORY_TOLERANCE:.0%} more memory than was "
                f"planned; stage {index} needs {bytes_text(peak.n_bytes)} in {peak.when}, and "
                f"{bytes_text(stage.memory_bytes)} were planned"
            )
    return largest
