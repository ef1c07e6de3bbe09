"""What a PyTorch user calls: `parallelize`, `parallelize_step`, and the step that they make."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from costmodel import Cluster
from torch import nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from frontends.errors import BatchError, PlanError
from frontends.plan import Plan
from frontends.planning import Planned
from frontends.torch.api import default_cluster, plan_for
from frontends.torch.arguments import State, name_leaves
from frontends.torch.calls import Tensor
from frontends.torch.capture import training_step
from frontends.torch.entries import assemble
from frontends.torch.forms import Form
from frontends.torch.initial import Build, init_weights
from frontends.torch.loading import Given, load_state_dict
from frontends.torch.processes import join, plan_together
from frontends.torch.runtime import Runtime
from frontends.torch.trace import Capture, Trace
from frontends.torch.verify import Verified, verify


class ParallelStep:
    """A training step that is planned at its first call and then runs on many devices.

    It takes and returns what the original does. The state lies sharded on the devices, and the
    user's model and optimizer are left as they were: `write_back` brings the state to them. The
    learning rates are those that the optimizer has when the step is called.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        model: nn.Module,
        optimizer: Optimizer,
        cluster: Cluster | None,
        options: dict[str, Any],
        deadline_s: float,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function, self.model, self.optimizer = function, model, optimizer
        self._cluster, self._options, self._deadline_s = cluster, options, deadline_s
        self._form: Form | None = None
        self._tree: Any = None
        self._planned: Planned[Trace] | None = None
        self._capture: Capture | None = None
        self._runtime: Runtime | None = None

    def __repr__(self) -> str:
        name = getattr(self._function, "__name__", repr(self._function))
        planned = "not planned yet" if self._planned is None else repr(self._planned.plan)
        return f"<ParallelStep of {name}: {planned}>"

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run one step; the first call also plans it.

        Raises:
            BatchError: The arguments have another structure, shape or type than it was planned for.
        """
        runtime = self.compile(*args, **named)
        return self.planned.trace.unflatten(runtime(self._values(self._batch(args, named))))

    def prepare(self, *args: Any, **named: Any) -> Planned[Trace]:
        """Capture and plan the step at these arguments' shapes, without placing its state."""
        if self._planned is None:
            self._form = Form.of(self.model, self.optimizer, args, named)
            batch = self._form.batch(args, named)
            self._tree = pytree.tree_structure(batch)
            join()
            self._cluster = self._cluster or default_cluster()
            search = functools.partial(
                plan_for,
                self._form.step(self._function),
                self.model,
                self.optimizer,
                batch,
                self._cluster,
            )
            self._planned, self._capture = plan_together(
                search, lambda found: found[0].plan, self._options
            )
        return self._planned

    def compile(self, *args: Any, **named: Any) -> Runtime:
        """Plan the step if it is not planned, and place its state on the devices."""
        self.prepare(*args, **named)
        return self.runtime

    @property
    def runtime(self) -> Runtime:
        """What runs the plan; `PlanError` before there is one."""
        if self._runtime is None:
            planned = self.planned
            assert self._capture is not None
            assert self._cluster is not None
            state = self._capture.state.tensors
            self._runtime = Runtime(
                planned.trace,
                planned.layered,
                planned.plan,
                self._cluster,
                state,
                rank=join(),
                deadline_s=self._deadline_s,
            )
        return self._runtime

    @property
    def planned(self) -> Planned[Trace]:
        """Trace, layers and plan; `PlanError` before the first call."""
        if self._planned is None:
            raise PlanError("a step has a plan after its first call, or after prepare(*arguments)")
        return self._planned

    @property
    def plan(self) -> Plan:
        """How the step runs; prints as a table."""
        return self.planned.plan

    def init_weights(self, build: Build) -> None:
        """Initialise a model from the meta device, each process only the parts that it keeps.

        Every number is that of `model = build()` on one device with the same `torch.manual_seed`,
        and the generator is left as there. What has values already, as from a checkpoint, keeps
        them; if nothing that is random is left, no numbers are drawn.

        Args:
            build: Makes the model as on one device; or model and optimizer, if the optimizer makes
                state when it is built.

        Raises:
            InitializationError: `build` makes another model, or cannot be followed without values.
            PlanError: The step has no plan yet.
        """
        init_weights(self.runtime, self._state(), build)

    def state_dict(self, *, full_state_dict: bool = True) -> dict[str, Any]:
        """The state as it is now: what model and optimizer would have as `state_dict()`.

        Args:
            full_state_dict: Whether tensors are whole. If not, each process gets what it keeps, as
                DTensors that lie as in the plan and share its memory; what every process has whole
                (what is read before the first microbatch, or not at all) stays a tensor.

        Returns:
            `model` and `optimizer`, for the `load_state_dict` of either.

        Raises:
            PlanError: Some state has no values yet; or there is only one process, or DTensor cannot
                say how a tensor lies, and DTensors are wanted.
        """
        if full_state_dict:
            return assemble(self._state(), self._now())
        runtime = self.runtime
        runtime.check_there()
        runtime.dtensors.check_order()
        tensors = {
            key[1].value: runtime.dtensors.of(key, s[0]) for key, s in runtime.shards.items()
        }
        return assemble(self._state(), {**tensors, **runtime.whole})

    def load_state_dict(self, state: Given, *, strict: bool = True) -> None:
        """Go on from other state, of which each process takes or reads the parts that it keeps.

        If this fails, nothing is changed. An optimizer that is given no state keeps what it has,
        or begins if it has none.

        Args:
            state: What `state_dict` gave, of this step or of one with another plan: whole tensors,
                or DTensors of any layout, of which processes may have different ones; `optimizer`
                may be left out. Or the path of a safetensors file with the model's weights, of an
                index of several, or of a folder with either, as Hugging Face writes them.
            strict: Whether exactly the model's names have to be there, and the optimizer's if it is
                given; else others are skipped, and what is lacking stays as it is.

        Raises:
            CheckpointError: Names are missing or unexpected, or shapes or types differ; or a file
                cannot be read.
            InitializationError: The optimizer's first state follows from weights: `init_weights`
                before.
            PlanError: The step has no plan yet, and files are read, or the model has no memory.
        """
        if self._planned is None and isinstance(state, Mapping) and not self._lacking_memory():
            self.model.load_state_dict(state["model"], strict=strict)
            if "optimizer" in state:
                self.optimizer.load_state_dict(state["optimizer"])
            return
        load_state_dict(self.runtime, self._state(), state, strict)

    def write_back(self) -> None:
        """Let the user's model and optimizer have the state as it is now.

        Raises:
            PlanError: They are on the meta device.
        """
        self._check_has_memory("state is written back to a model and an optimizer")
        now = self._now()
        with torch.no_grad():
            for name, tensor in self._state().tensors.items():
                tensor.copy_(now[name])

    def verify(self, *args: Any, n_steps: int = 2, **named: Any) -> Verified:
        """Run some steps both ways, here and eagerly on one device, and compare.

        The state is afterwards what it was. Random numbers are drawn alike in both.

        Args:
            args: What the step is called with.
            n_steps: How many steps, all with these arguments.
            named: The same, by name.

        Raises:
            PlanError: The model is on the meta device.
            VerificationError: Losses differ, or what ran is not what the plan says.
        """
        self._check_has_memory("a run is compared with eager steps of a model")
        runtime = self.compile(*args, **named)
        assert self._form is not None
        batch = self._batch(args, named)
        step = self._form.step(self._function)

        def eager() -> Any:
            return step(self.model, self.optimizer, batch)

        def parallel() -> Any:
            return self.planned.trace.unflatten(runtime(self._values(batch)))

        return verify(runtime, self._state(), eager, parallel, n_steps)

    def _lacking_memory(self) -> list[str]:
        return [name for name, tensor in self._state().tensors.items() if tensor.is_meta]

    def _check_has_memory(self, what: str) -> None:
        lacking = self._lacking_memory()
        if lacking:
            raise PlanError(
                f"{what} with memory on one device; {lacking[0]} and {len(lacking) - 1} others are "
                "on the meta device: take a model of the same kind that a device can hold"
            )

    def _state(self) -> State:
        return State(self.model, self.optimizer)

    def _now(self) -> Mapping[str, Tensor]:
        return self._state().tensors if self._planned is None else self.runtime.whole_state()

    def _batch(self, args: Any, named: Mapping[str, Any]) -> Any:
        assert self._form is not None
        batch = self._form.batch(args, named)
        tree = pytree.tree_structure(batch)
        if tree != self._tree:
            raise BatchError(
                "a batch must have the structure that the step was planned for; "
                f"got {tree} instead of {self._tree}"
            )
        return batch

    def _values(self, batch: Any) -> dict[str, Tensor]:
        """All arguments of the step that are not state, by name; draws random numbers."""
        assert self._capture is not None
        assert self._runtime is not None
        trace, state = self.planned.trace, self._capture.state
        now = state.settings
        values = {n: leaf for n, leaf in name_leaves(batch) if isinstance(leaf, Tensor)}
        for argument in trace.arguments:
            if argument.setting is not None:
                number = now[argument.setting]
                values[argument.name] = torch.tensor(number, dtype=argument.dtype)
        read = {n for early in trace.early for n in early.reads if n in state.tensors}
        values |= {name: self._runtime.value(name) for name in read}
        found = trace.complete(values)
        return {name: value for name, value in found.items() if name not in read}


def parallelize(
    model: nn.Module,
    optimizer: Optimizer,
    loss_fn: Callable[[nn.Module, Any], Tensor],
    example_batch: Any = None,
    *,
    cluster: Cluster | None = None,
    deadline_s: float = 60.0,
    **options: Any,
) -> ParallelStep:
    """Train a model on all devices, by a plan that is found at once or at the first call.

    Model and loss stay as they were written for one device.

    Args:
        model: Any module.
        optimizer: Of its parameters.
        loss_fn: From model and batch to a loss.
        example_batch: Shapes and types of the batches; without it the first batch is planned for.
        cluster: What to plan for; by default the processes that the launcher started, or 8 virtual
            devices.
        deadline_s: Where there are several processes, how long a step may stand still, or nothing
            be heard of a process, before all end and say which is at fault.
        options: Any of `plan_for`: `microbatches`, `strategy`, `schedule`, `memory_bytes`,
            `level`, `memory_rule`, `pin`, `n_layers`, `plan`, `progress`.

    Returns:
        A step: called with a batch, it updates the state and returns the loss.

    Raises:
        TypeError: There is no such option.
    """
    step = training_step(loss_fn)

    def train(batch: Any) -> Any:
        return step(model, optimizer, batch)

    made = parallelize_step(
        train, model, optimizer, cluster=cluster, deadline_s=deadline_s, **options
    )
    if example_batch is not None:
        made.prepare(example_batch)
    return made


def parallelize_step(
    step: Callable[..., Any],
    model: nn.Module,
    optimizer: Optimizer,
    *,
    cluster: Cluster | None = None,
    deadline_s: float = 60.0,
    **options: Any,
) -> ParallelStep:
    """The same for a whole step, in which `loss.backward()` and `optimizer.step()` are called.

    Args:
        step: Takes a batch in any number of arguments, by place or name; model and optimizer may be
            among those by place.
        model: That the step trains.
        optimizer: That it calls.
        cluster: As in `parallelize`.
        deadline_s: As in `parallelize`.
        options: As in `parallelize`.

    Returns:
        What is called like the step.

    Raises:
        TypeError: There is no such option.
    """
    parameters = inspect.signature(plan_for).parameters.values()
    known = {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    for name in options:
        if name not in known:
            raise TypeError(
                f"parallelize has the options cluster, deadline_s, {', '.join(sorted(known))}; "
                f"got {name}"
            )
    return ParallelStep(step, model, optimizer, cluster, options, deadline_s)
