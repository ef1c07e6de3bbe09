"""Take a training step written for one device, plan it, and run it on many.

Users call the functions of `frontends.jax` and `frontends.torch`. A `Plan` is data between planning
and running, and needs neither framework.
"""

from importlib.metadata import version

from frontends.answer.plan import Plan
from frontends.errors import (
    AccumulationError,
    BatchError,
    CheckpointError,
    DataError,
    DeadlockError,
    DeviceError,
    ExchangeError,
    FrontendsError,
    InitializationError,
    NoPlanError,
    OutputError,
    PeerError,
    PlanError,
    RegistrationError,
    StepError,
    UnsupportedStepError,
    VerificationError,
    WayOut,
)
from frontends.search.plan_options import PlanOptions

__version__ = version("meshwright-frontends")

__all__ = [
    "AccumulationError",
    "BatchError",
    "CheckpointError",
    "DataError",
    "DeadlockError",
    "DeviceError",
    "ExchangeError",
    "FrontendsError",
    "InitializationError",
    "NoPlanError",
    "OutputError",
    "PeerError",
    "Plan",
    "PlanError",
    "PlanOptions",
    "RegistrationError",
    "StepError",
    "UnsupportedStepError",
    "VerificationError",
    "WayOut",
]
