"""Runs a program eagerly and through `frontends.torch`, and compares what its user sees.

A program is a generator function of a way to run: it builds model and optimizer, makes its step by
`way.loss` or `way.step`, and yields, after every call, what its user looks at. After every yield,
model, optimizer and the states of random generators are compared, too. A step that is refused runs
eagerly from then on, so that a refusal that has changed anything is detected.
"""

from __future__ import annotations

import functools
import random
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from costmodel import Cluster
from torch import nn

from frontends.errors import FrontendsError
from frontends.torch.api.parallel import parallelize, parallelize_step
from frontends.torch.capture.capture import training_step
from frontends.torch.fuzzing.compare import copied, differences

Script = Callable[[Any], Iterator[Any]]
"""A function from a way to run, an `Eager` or an `Ours`, to what the user sees."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of judging a program."""

    name: str
    """`equal`; `typed` if it was refused, with nothing changed; `WRONG` if anything differs; `RAW`
    if an exception is not one of this package's; `HANG`; or `BROKEN` if it fails eagerly."""

    detail: str = ""
    """The first differences, or the error."""


class HangError(Exception):
    """A program took too long."""


class Eager:
    """Runs a program eagerly, without this package."""

    def __init__(self) -> None:
        self.watched: list[tuple[nn.Module, Any]] = []
        """Models and optimizers, which are compared after every yield."""

    def loss(self, model: nn.Module, optimizer: Any, loss_fn: Callable[..., Any]) -> Any:
        """Return the training step for a loss, as `parallelize` makes it."""
        self.watched.append((model, optimizer))
        step = training_step(loss_fn)

        def train(batch: Any) -> Any:
            return step(model, optimizer, batch)

        return train

    def step(self, step: Callable[..., Any], model: nn.Module, optimizer: Any) -> Any:
        """Return the step itself."""
        self.watched.append((model, optimizer))
        return step


class Ours(Eager):
    """Runs a program through `parallelize` and `parallelize_step`; refused steps run eagerly.

    Args:
        devices: The number of virtual devices.
        options: Options of `parallelize`.
        own_file: The program's file; an exception raised there is not an error.
    """

    def __init__(self, devices: int, options: Mapping[str, Any], own_file: str = "") -> None:
        super().__init__()
        self._own_file = own_file
        cluster = Cluster.preset("virtual-cpu").resized(devices_per_host=devices)
        self._options = {"cluster": cluster, **options}
        self._n_calls = 0
        self.refused: str = ""
        """The call that was refused, and why; empty if none was."""

        self.failed: Exception | None = None
        """An exception of a call that is not this package's, and not raised by the program."""

    def loss(self, model: nn.Module, optimizer: Any, loss_fn: Callable[..., Any]) -> Any:
        """Return the parallel training step for a loss."""
        eager = super().loss(model, optimizer, loss_fn)
        return self._guarded(functools.partial(parallelize, model, optimizer, loss_fn), eager)

    def step(self, step: Callable[..., Any], model: nn.Module, optimizer: Any) -> Any:
        """Return the parallel step for a whole step."""
        eager = super().step(step, model, optimizer)
        return self._guarded(functools.partial(parallelize_step, step, model, optimizer), eager)

    def _guarded(self, make: Callable[..., Any], eager: Callable[..., Any]) -> Any:
        step: Callable[..., Any] = eager
        with self._refusing():
            step = make(**self._options)

        def call(*args: Any, **named: Any) -> Any:
            if not self.refused:
                self._n_calls += 1
                with self._refusing():
                    return step(*args, **named)
            return eager(*args, **named)

        return call

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except FrontendsError as error:
            self.refused = f"call {self._n_calls - 1}: {_told(error)}"
        except HangError:
            raise
        except Exception as error:
            if traceback.extract_tb(error.__traceback__)[-1].filename != self._own_file:
                self.failed = error
            raise


def judge(
    program: Script,
    *,
    devices: int = 2,
    rtol: float = 1e-5,
    limit_s: int = 90,
    looks: bool = True,
    **options: Any,
) -> Verdict:
    """Run a program both ways, and compare everything that its user can see.

    Args:
        program: The program; it is called twice, with the same seeds.
        devices: The number of virtual devices.
        rtol: The relative error that is allowed, in the norm of a tensor.
        limit_s: The processor time that each run may take, in seconds, so that a busy machine
            changes no verdict; a run that only waits is given ten times as long. The limits use
            signals, so call this in the main thread.
        looks: Whether model and optimizer are compared after every call, and not only at the end.
        options: Options of `parallelize`; by default one microbatch.
    """
    try:
        expected = _run(program, Eager(), limit_s, looks)
    except Exception as error:
        return Verdict("BROKEN", _told(error))
    own_file = getattr(program, "__code__", judge.__code__).co_filename
    ours = Ours(devices, {"microbatches": 1, **options}, own_file)
    try:
        observed = _run(program, ours, limit_s, looks)
    except HangError as error:
        return Verdict("HANG", _told(error))
    except FrontendsError as error:
        return Verdict("typed", f"outside of the step: {_told(error)}")
    except Exception as error:
        return Verdict("RAW", _told(error))
    if ours.failed is not None:
        return Verdict("RAW", _told(ours.failed))
    different = _first_difference(expected, observed, rtol)
    if different:
        return Verdict("WRONG", different + (f" after {ours.refused}" if ours.refused else ""))
    return Verdict("typed", ours.refused) if ours.refused else Verdict("equal")


def _first_difference(
    expected: list[dict[str, Any]], found: list[dict[str, Any]], rtol: float
) -> str:
    """Return the first difference; what the program yields at any call counts before state."""
    if len(expected) != len(found):
        return f"yields {len(expected)} times eagerly, {len(found)} here"
    for what in dict.fromkeys(what for one in expected for what in one):
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            different = list(_compared(what, one.get(what), other.get(what), rtol))
            if different:
                more = "; ..." if len(different) > 3 else ""
                return f"call {number}: {'; '.join(different[:3])}{more}"
    return ""


def _compared(what: str, expected: Any, found: Any, rtol: float) -> Iterator[str]:
    """Yield differences; ours may have optimizer state earlier than eager, which is ignored."""
    if what.endswith(".state") and isinstance(expected, dict) and isinstance(found, dict):
        for key, value in expected.items():
            yield from differences(value, found.get(key), rtol, f"{what}[{key!r}]")
    else:
        yield from differences(expected, found, rtol, what)


def _run(program: Script, way: Eager, limit_s: int, looks: bool) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    dtype = torch.get_default_dtype()
    try:
        with _limited(limit_s), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seen = [
                {"yielded": copied(yielded), **(_looked_at(way) if looks else {})}
                for yielded in program(way)
            ]
            return [*seen, _looked_at(way)]
    finally:
        torch.set_default_dtype(dtype)


def _looked_at(way: Eager) -> dict[str, Any]:
    """Return everything else that a user may look at after a call, in the order of blame."""
    seen: dict[str, Any] = {}
    for index, (model, optimizer) in enumerate(way.watched):
        seen[f"model{index}"] = copied(model.state_dict())
        seen[f"python{index}"] = copied(dict(_python_state(model)))
        if isinstance(optimizer, torch.optim.Optimizer):
            state = optimizer.state_dict()
            seen[f"optimizer{index}.groups"] = copied(state["param_groups"])
            seen[f"optimizer{index}.state"] = {
                f"{number}.{key}": copied(value)
                for number, kept in state["state"].items()
                for key, value in (kept.items() if isinstance(kept, dict) else [("", kept)])
                if value is not None
            }
    seen["random"] = copied([torch.get_rng_state(), random.random(), float(np.random.rand())])
    seen["modes"] = copied([torch.is_grad_enabled(), str(torch.get_default_dtype())])
    return seen


def _python_state(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield what modules keep besides the contents of their state dicts."""
    yield "requires_grad", {name: p.requires_grad for name, p in model.named_parameters()}
    yield "dtypes", {name: str(p.dtype) for name, p in model.named_parameters()}
    yield "buffers", dict(model.named_buffers())
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if not key.startswith("_"):
                yield f"{name}.{key}", value


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """Raise `HangError` inside, if it computes for too long, or waits ten times as long."""

    def stop(number: int, _: Any) -> None:
        limit = f"{seconds} s of processor time" if number == signal.SIGPROF else f"{waiting} s"
        raise HangError(f"a program ends within {limit}, and this one does not")

    waiting = 10 * seconds
    timers = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}
    before = {number: signal.signal(number, stop) for number in timers.values()}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, waiting)
    try:
        yield
    finally:
        for timer, number in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def _told(error: BaseException) -> str:
    """Return an error's text, and where it was raised."""
    if isinstance(error.__cause__, StopIteration):  # its own traceback ends in the generator
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" [{Path(f.filename).name}:{f.lineno} {f.name}]" for f in frames)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}{where}"
