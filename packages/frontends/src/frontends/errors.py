"""The errors that users of this package can meet, as types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crossmesh import TransferError
from shardspec.amounts import bytes_text, seconds_text


class FrontendsError(Exception):
    """Base of every error that this package raises on purpose."""


class UnsupportedStepError(FrontendsError, ValueError):
    """The training step does something that cannot be planned; the message says what."""


class RegistrationError(FrontendsError, ValueError):
    """An entry does not fit its table; the message says what an entry has to be."""


class AccumulationError(UnsupportedStepError):
    """The step's gradient is not a sum over microbatches, so it cannot be accumulated."""

    def __init__(self, message: str, operator: str | None = None) -> None:
        super().__init__(message)
        self.operator = operator
        """Name, in the graph, of the operator that mixes examples."""

    def written(self, line: str) -> AccumulationError:
        """This error with the line of code that the operator comes from in its message."""
        return AccumulationError(f"{self}; it is written {line}", self.operator)


class InitializationError(FrontendsError, ValueError):
    """A model cannot be initialised shard by shard, or the step uses another model.

    The message says why.
    """


class ArgumentError(FrontendsError, TypeError):
    """A step is called with an argument that it cannot take; the message names it by its path."""


class BatchError(FrontendsError, ValueError):
    """The batch cannot be cut into the microbatches, or is not what the step was planned for."""


class DeviceError(FrontendsError, RuntimeError):
    """The backend has fewer devices than a plan needs, or processes of a run do not do the same."""


class PlanError(FrontendsError, ValueError):
    """A plan cannot be read, or was made for another step."""


class HeldLayoutError(PlanError):
    """A step cannot run with its state in the layouts of an earlier plan; plan it on its own."""


@dataclass(frozen=True, slots=True)
class WayOut:
    """A change with which a step has a plan."""

    change: str
    """What is changed, in words."""

    step_s: float
    """Predicted time of a step, in seconds, of the best plan that a short search found."""

    memory_bytes: int
    """Peak memory of the fullest device of that plan."""

    def __str__(self) -> str:
        seconds, memory = seconds_text(self.step_s), bytes_text(self.memory_bytes)
        return f"{self.change} ({seconds} a step, {memory} a device)"


class NoPlanError(FrontendsError, ValueError):
    """No plan that was asked for runs on the cluster; the message says why, and what runs instead.

    Args:
        message: Why there is no plan.
        ways: Changes with which there is one, the fastest first.
    """

    def __init__(self, message: str = "", ways: Sequence[WayOut] = ()) -> None:
        listed = ", or ".join(map(str, ways))
        super().__init__(f"{message}. What runs: {listed}" if ways else message)
        self.ways = tuple(ways)
        """Changes with which there is a plan, the fastest first."""


class RunError(FrontendsError, RuntimeError):
    """A compiled program failed on its device; the message says in which stage and phase."""


class NotFiniteError(FrontendsError, FloatingPointError):
    """A program computed a NaN or an infinity, and the framework was asked to check for them."""


class InternalError(FrontendsError, RuntimeError):
    """A failure that should not occur; the message says what was being done, and to which value."""


class StepError(FrontendsError, RuntimeError):
    """An operator failed while a step ran.

    The message says which operator, on which line it was called, and with which values.
    """

    def __init__(
        self,
        message: str,
        *,
        operator: str | None = None,
        line: str | None = None,
        stage: int | None = None,
        values: tuple[str, ...] = (),
        number: int = 0,
    ) -> None:
        super().__init__(message)
        self.number = number
        """Position of the operator in the order in which a step on one device calls them."""

        self.operator = operator
        """The operator's name in the framework."""

        self.line = line
        """Line of the user's code, and of the library that made the call: `file:line: code`."""

        self.stage = stage
        """The stage that computed it; None before the first microbatch."""

        self.values = values
        """What the operator read: the path of each argument, or where the value was computed."""


class DeadlockError(FrontendsError, RuntimeError):
    """Instruction lists wait for each other; the message says who waits for whom."""


class ExchangeError(FrontendsError, RuntimeError):
    """A value did not get from one process to another; the message names them."""


class PeerError(ExchangeError, TransferError):
    """A value was not exchanged because another process failed, ended, or makes no progress."""


class VerificationError(FrontendsError, AssertionError):
    """The parallel run and the single-device run disagree, or a plan and its program do."""


class DataError(FrontendsError, OSError):
    """The training text cannot be read, or is too short."""


class OutputError(FrontendsError, OSError):
    """The results cannot be written to the path that was asked for."""


class CheckpointError(FrontendsError, OSError):
    """The checkpoint does not exist, or does not hold the state that was asked for."""
