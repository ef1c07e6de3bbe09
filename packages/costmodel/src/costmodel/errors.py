"""Typed errors of this package: one base class, each with its built-in parent."""


class CostmodelError(Exception):
    """Base of every error that this package raises."""


class QuantityError(CostmodelError, ValueError):
    """A size, time or rate is outside the range in which the formulas mean something."""


class UnknownNameError(CostmodelError, KeyError):
    """No preset, collective, algorithm, optimizer or schedule has this name.

    Attributes:
        name: The name that was asked for.
    """

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name

    __str__ = Exception.__str__  # KeyError would print the repr of the message


class UnknownDtypeError(UnknownNameError):
    """No dtype is called `name`, or a device states no arithmetic peak for it."""


class RegistrationError(CostmodelError, ValueError):
    """A table cannot have this entry; the message says what an entry is."""


class PlacementError(CostmodelError, ValueError):
    """The cluster has no such device, or no network."""


class HeterogeneousClusterError(CostmodelError, ValueError):
    """Something of all hosts was asked for, and the hosts of the cluster differ in it."""


class ClusterFormatError(CostmodelError, ValueError):
    """A JSON text does not describe a cluster.

    Attributes:
        missing: Paths of the fields that the text leaves out, such as `hosts[0].device.launch_s`.
    """

    def __init__(self, message: str, missing: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.missing = missing


class FitError(CostmodelError, ValueError):
    """Measured points are too few, or too alike, for what is to be fitted to them."""


class ProfileFormatError(CostmodelError, ValueError):
    """A JSON text does not describe a profile."""


class CalibrationError(CostmodelError, RuntimeError):
    """A measurement cannot start, or a process of it failed, hung or ended."""


class MissingExtraError(CostmodelError, ImportError):
    """A library is not installed that an optional part of this package needs.

    Attributes:
        extra: The extra of this package that has it.
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the extra {extra!r}; "
            f"install it with: pip install 'meshwright-costmodel[{extra}]'"
        )
        self.extra = extra


class OtherMachineWarning(UserWarning):
    """A profile was measured on another machine than this one."""


def shown(value: object) -> str:
    """A value as messages show it: its repr, as far as it fits on a line or two."""
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to print the largest
        return f"a whole number of {value.bit_length()} bits"
    text = repr(float(value) if isinstance(value, float) else value)  # numpy's as Python's
    return text if len(text) <= 200 else f"{text[:200]}..."
