"""Typed errors of this package: one base class, each with its built-in parent."""


class CostmodelError(Exception):
    """Base of every error that this package raises."""


class QuantityError(CostmodelError, ValueError):
    """A size, time or rate is outside the range in which the formulas mean something."""


class UnknownNameError(CostmodelError, KeyError):
    """No preset or optimizer has this name.

    Attributes:
        name: The name that was asked for.
    """

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name

    __str__ = Exception.__str__  # KeyError would print the repr of the message


class UnknownDtypeError(UnknownNameError):
    """A device states no arithmetic peak for the floating-point dtype `name`."""


class PlacementError(CostmodelError, ValueError):
    """A device id lies outside the cluster."""


class ClusterFormatError(CostmodelError, ValueError):
    """A JSON text does not describe a cluster."""
