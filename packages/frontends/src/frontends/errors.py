"""What can go wrong at the boundary, as types."""

from __future__ import annotations

from crossmesh import TransferError


class FrontendsError(Exception):
    """Base of every error that this package raises on purpose."""


class UnsupportedStepError(FrontendsError, ValueError):
    """The training step does something that cannot be planned; the message says what."""


class RegistrationError(FrontendsError, ValueError):
    """A table cannot have this entry; the message says what an entry is."""


class AccumulationError(UnsupportedStepError):
    """The step's gradient is not a sum over microbatches, so it cannot be accumulated."""

    def __init__(self, message: str, operator: str | None = None) -> None:
        super().__init__(message)
        self.operator = operator
        """What mixes examples, by its name in the graph."""

    def written(self, line: str) -> AccumulationError:
        """The same with the line that the operator comes from."""
        return AccumulationError(f"{self}; it is written {line}", self.operator)


class InitializationError(FrontendsError, ValueError):
    """A model cannot be initialised shard by shard, or is not the step's; the message says why."""


class ArgumentError(FrontendsError, TypeError):
    """A step is called with what it cannot take; the message names it by its path."""


class BatchError(FrontendsError, ValueError):
    """The batch does not fit the microbatches, or the step it was planned for."""


class DeviceError(FrontendsError, RuntimeError):
    """The plan needs devices that the backend does not have."""


class PlanError(FrontendsError, ValueError):
    """A plan cannot be read, or was made for another step."""


class HeldLayoutError(PlanError):
    """A step cannot run with its state where an earlier plan keeps it; plan it on its own."""


class NoPlanError(FrontendsError, ValueError):
    """No plan fits the cluster's memory; the message says how much would do."""


class RunError(FrontendsError, RuntimeError):
    """A compiled program failed on its device; the message says in which stage and phase."""


class NotFiniteError(FrontendsError, FloatingPointError):
    """A program made a number that is none, and the framework was asked to look for such."""


class InternalError(FrontendsError, RuntimeError):
    """Something failed that should not have; the message says what was being done, and to what."""


class StepError(FrontendsError, RuntimeError):
    """An operator failed while a step ran; the message says which, where it was called, on what."""

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
        """Of the operator, in the order in which a step on one device calls them."""

        self.operator = operator
        """Its name in the framework."""

        self.line = line
        """Of the user's code, and of the library's if one called it: `file:line: code`."""

        self.stage = stage
        """None for what is computed before the first microbatch."""

        self.values = values
        """What it read: paths of arguments, or where it was made."""


class DeadlockError(FrontendsError, RuntimeError):
    """Instruction lists wait for each other; the message says who waits for whom."""


class ExchangeError(FrontendsError, RuntimeError):
    """Values did not get from process to process; the message says which, and between whom."""


class PeerError(ExchangeError, TransferError):
    """They did not because another process failed, is gone, or does not get on."""


class VerificationError(FrontendsError, AssertionError):
    """The parallel run and the single-device run, or plan and program, disagree."""


class DataError(FrontendsError, OSError):
    """The training text cannot be read, or is too short."""


class OutputError(FrontendsError, OSError):
    """The results cannot be written where they should go."""


class CheckpointError(FrontendsError, OSError):
    """There is no such checkpoint, or it holds other state than is wanted."""
