"""Initializes state where it is kept: a process holds at most one whole tensor at a time."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from frontends.errors import InitializationError
from frontends.torch.base.compat.state import with_tensors
from frontends.torch.capture.arguments import State
from frontends.torch.run.kept_state import Parts
from frontends.torch.run.processes import gather
from frontends.torch.run.runtime import Runtime
from frontends.torch.state.recording import Recording, StorageView, record

Build = Callable[[], nn.Module | tuple[nn.Module, Optimizer]]
"""Builds a model as on one device, or a model and its optimizer."""


def init_weights(runtime: Runtime, state: State, build: Build) -> None:
    """Give all state without values the values that it has after `build()`.

    Args:
        runtime: Holds the state.
        state: The state of the model and the optimizer that were planned.
        build: Called once; what it builds takes no memory.

    Raises:
        InitializationError: `build` builds another model, or cannot be recorded; or all state has
            values; or processes have random generators in different states.
    """
    if not runtime.missing:
        raise InitializationError(
            "init gives values to state that has none, and all of this step's state has some: "
            'build the model that is parallelized under torch.device("meta")'
        )
    _check_generators()
    with record() as recording:
        built = build()
        model, optimizer = built if isinstance(built, tuple) else (built, None)
        _check_names(set(dict(state.model.named_parameters())), set(dict(model.named_parameters())))
        new = _begun(state, model) if optimizer is None else State(model, optimizer)
        places = {name: recording.find(tensor) for name, tensor in new.tensors.items()}
    _check_names(set(state.tensors), set(places))
    _make(runtime, recording, state, places)


def init_optimizer(runtime: Runtime, state: State, given: Collection[str] = ()) -> None:
    """Give state of the optimizer without values its initial values.

    Args:
        runtime: Holds the state.
        state: The state of the model and the optimizer that were planned.
        given: Names of state that gets values otherwise.

    Raises:
        InitializationError: The initial values depend on the parameters, or do not exist before the
            first update.
    """
    missing = {name for name in runtime.missing.difference(given) if name[:10] == "optimizer["}
    if not missing:
        return
    with record() as recording:
        kept = {**dict(state.model.named_parameters()), **dict(state.model.named_buffers())}
        empty = {
            n: torch.empty(t.shape, dtype=t.dtype, requires_grad=t.requires_grad)
            for n, t in kept.items()
        }
        with with_tensors(state.model, empty):
            new = _begun(state, state.model)
            places = {name: recording.find(tensor) for name, tensor in new.tensors.items()}
    _check_names(set(state.tensors), set(places))
    weights = {place.memory for n, place in places.items() if not n.startswith("optimizer[")}
    for name in sorted(missing):
        if recording.reads(places[name]) & weights:
            raise InitializationError(
                "an optimizer's first state is made without the parameters' values, or by init "
                f"with them; {name} follows from them: call init first, then load"
            )
    _make(runtime, recording, state, {name: places[name] for name in missing})


def _make(
    runtime: Runtime, recording: Recording, state: State, places: Mapping[str, StorageView]
) -> None:
    for name, place in places.items():
        tensor = state.tensors[name]
        expected, built = (tuple(tensor.shape), tensor.dtype), (place.shape, place.dtype)
        if expected != built or place.device.type == "meta":
            raise InitializationError(
                "a model is initialised as it was planned, on the CPU; got "
                f"{name} of {built[1]}{list(built[0])} on {place.device} instead of "
                f"{expected[1]}{list(expected[0])}: build both models alike, only the planned one "
                'under torch.device("meta")'
            )
    wanted = {name: places[name] for name in sorted(runtime.missing & places.keys())}
    parts = Parts(names=set(wanted))
    recording.make(wanted, runtime.has, lambda name, whole: runtime.cut(name, whole, parts))
    runtime.take(parts)


def _begun(state: State, model: nn.Module) -> State:
    """Return the state of another model, with a copy of the optimizer before its first update."""
    parameters = dict(model.named_parameters())
    begun: Optimizer = object.__new__(type(state.optimizer))
    # not `step`, which a scheduler sets to a method of the original optimizer
    begun.__dict__.update((k, v) for k, v in state.optimizer.__dict__.items() if k != "step")
    begun.state = defaultdict(dict)
    begun.param_groups = [
        {**group, "params": [parameters[state.name_of[id(p)]] for p in group["params"]]}
        for group in state.optimizer.param_groups
    ]
    new = State(model, begun)
    if state.optimizer.state and not begun.state:
        raise InitializationError(
            "an optimizer's first state is made again, before an update; "
            f"{type(begun).__name__} has none then: pass a function to init that builds "
            "both: return (model, optimizer)"
        )
    return new


def _check_names(expected: Collection[str], built: Collection[str]) -> None:
    lacking, more = sorted(set(expected) - set(built)), sorted(set(built) - set(expected))
    if lacking or more:
        raise InitializationError(
            "a model is initialised by a function that builds it as it was planned, with the same "
            f"parameters, buffers and ties; what it builds lacks {lacking[:3]} and has besides "
            f"{more[:3]} ({len(lacking)} and {len(more)} in all)"
        )


def _check_generators() -> None:
    """Check that the random generators of all processes have the same state."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    digests = gather(hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
    others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise InitializationError(
            "all processes initialise a model from one state of PyTorch's random generator; "
            f"processes {others} have another than process 0: call torch.manual_seed with one "
            "number in all of them before"
        )
