"""Compare compiled programs with the plan: their collectives, and the memory that they need."""

from __future__ import annotations

from collections import Counter

import jax
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
        How many collectives the programs of this process contain.

    Raises:
        VerificationError: Kind, groups, bytes or count differ somewhere.
    """
    # Backward may be in two chunks, one of them with forward: all their phases count together.
    by_length = sorted(runtime.program.chunks, key=lambda chunk: len(chunk.phases))
    together = {(c.stage, phase): c.phases for c in by_length for phase in c.phases}
    compiled: dict[tuple[int, tuple[int, ...]], Counter[tuple[object, ...]]] = {}
    for chunk, program in zip(runtime.program.chunks, runtime.programs, strict=True):
        if program is None:  # another process runs and checks it
            continue
        phases = together[chunk.stage, chunk.phase]
        counts = compiled.setdefault((chunk.stage, phases), Counter())
        counts.update(collectives_of(program.as_text()))
    is_cpu = jax.devices()[0].platform == "cpu"
    has_halves = is_cpu and any(v.dtype in _HALVES for v in runtime.program.step.graph.values)
    for (stage, phases), counts in compiled.items():
        planned = planned_collectives(runtime.plan, stage, phases)
        counts = _as_planned(counts, planned) if has_halves else counts
        if counts != planned:
            names = " and ".join(PHASE_NAMES[phase] for phase in phases)
            raise VerificationError(
                "compiled programs must communicate what the plan says; "
                f"{names} of stage {stage} has {dict(counts - planned)} in addition to the plan "
                f"and lacks {dict(planned - counts)}"
            )
    return sum(sum(counts.values()) for counts in compiled.values())


_HALVES = ("bfloat16", "float16")


def _as_planned(
    counts: Counter[tuple[object, ...]], planned: Counter[tuple[object, ...]]
) -> Counter[tuple[object, ...]]:
    """The collectives of a compiled program, those that the compiler widened as in the plan.

    XLA computes in float32 on CPUs where a step has 16-bit numbers, and moves such numbers in that
    dtype, twice as many bytes.
    """
    left, found = Counter(counts), Counter[tuple[object, ...]]()
    # From the largest on: what is left of twice a size can only be of this size.
    for *what, n_bytes in sorted(planned, key=lambda key: -int(str(key[-1]))):
        key, wide = (*what, n_bytes), (*what, 2 * int(str(n_bytes)))
        for size in (wide, key):
            taken = min(planned[key] - found[key], left[size])
            found[key] += taken
            left[size] -= taken
    return +(found + left)


def measured_peaks(runtime: Runtime) -> Peaks:
    """The peak memory of each device in a step, with what XLA says that its programs need.

    Values that are held between instructions are counted from their shapes. While a program runs,
    what XLA has allocated for it is added: temporaries, and results that are not written over an
    operand.
    """

    def program_bytes(index: int) -> int:
        if runtime.programs[index] is None:  # another process runs it
            return 0
        memory = runtime.programs[index].memory_analysis()
        new = memory.output_size_in_bytes - memory.alias_size_in_bytes
        return int(memory.temp_size_in_bytes + new)

    return peaks_of(runtime.program, donate=runtime.donate, program_bytes=program_bytes)


def check_memory(runtime: Runtime) -> float:
    """Check that the compiled programs need no more memory than was planned.

    Args:
        runtime: One that donates state: a plan has no room for the state before the step.

    Returns:
        The largest ratio, over all stages, of needed to planned memory.

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
