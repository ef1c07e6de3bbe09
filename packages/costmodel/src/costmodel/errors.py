"""Typed errors of this package: one base class, each with its built-in parent."""


class CostmodelError(Exception):
    """Base of every error that this package raises."""


class QuantityError(CostmodelError, ValueError):
    """A size, time or rate is outside the range in which the formulas are meaningful."""


class UnknownNameError(CostmodelError, KeyError):
    """No preset, collective, algorithm, optimizer or schedule has this name.

    Attributes:
        name: The name that is not known.
    """

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name

    __str__ = Exception.__str__  # the one of KeyError would print the repr of the message


class UnknownDtypeError(UnknownNameError):
    """`name` is not a dtype, or a device states no arithmetic peak for it."""


class RegistrationError(CostmodelError, ValueError):
    """An algorithm cannot be registered; the message says what it has to be."""


class PlacementError(CostmodelError, ValueError):
    """The cluster does not have this device, or has no network."""


class HeterogeneousClusterError(CostmodelError, ValueError):
    """A single value for all hosts was requested, but the hosts of the cluster differ in it."""


class ClusterFormatError(CostmodelError, ValueError):
    """A JSON text does not describe a cluster.

    Attributes:
        missing: Paths of the fields that the text leaves out, such as `hosts[0].device.launch_s`.
    """

    def __init__(self, message: str, missing: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.missing = missing


class FitError(CostmodelError, ValueError):
    """The measured points are too few, or too alike, for a fit."""


class ProfileFormatError(CostmodelError, ValueError):
    """A JSON text does not describe a profile."""


class CalibrationError(CostmodelError, RuntimeError):
    """A measurement cannot start, or one of its processes failed, hung or ended early."""


class MissingExtraError(CostmodelError, ImportError):
    """An optional part of this package needs a library that is not installed.

    Attributes:
        extra: The extra of this package that installs it.
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
    """The repr of a value for a message, cut off after 200 characters."""
    if isinstance(value, int) and value.bit_length() > 256:  # Python does not print the largest
        return f"a whole number of {value.bit_length()} bits"
    text = repr(float(value) if isinstance(value, float) else value)  # numpy's floats as Python's
    return text if len(text) <= 200 else f"{text[:200]}..."
