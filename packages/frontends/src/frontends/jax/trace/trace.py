"""From a JAX training step to a `Step`: trace, inline, split compute from apply, name everything.

The step is traced once, on the whole batch. A microbatch's program is cut from it, so it keeps the
whole batch's constants: plain sums over microbatches give the whole batch's gradient, for mean and
sum losses alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from frontends.base.boundary import doing
from frontends.errors import AccumulationError, BatchError, UnsupportedStepError
from frontends.jax.base import _compat
from frontends.jax.base._compat import ClosedJaxpr, JaxprEqn, Var
from frontends.jax.base.arguments import Argument, Outputs, describe, match_state, numbers_of
from frontends.jax.base.boundary import Traced, computing_early, of_an_earlier_trace
from frontends.jax.base.loops import unrolled, without_stacks
from frontends.jax.trace.effects import Callbacks, without_callbacks
from frontends.jax.trace.microbatch import Early, Flat, compute_early, cut
from frontends.jax.trace.prng import KeyExpansion, keys_of_draws
from frontends.jax.trace.program import Constant, Program, Rules, phases_of, without_gradients
from frontends.step.step import Step, accumulate, fingerprint


@dataclass(frozen=True)
class Trace:
    """A step and what is needed to run it in JAX."""

    step: Step
    equations: dict[str, JaxprEqn]
    """By operator name; an identity has none."""

    operands: dict[str, tuple[str | Constant, ...]]
    """By operator name: each operand is the name of a value or a literal constant."""

    constants: dict[str, Any]
    """Arrays that the step closes over, by value name."""

    arguments: tuple[Argument, ...]
    """The leaves of the user's arguments, and after them what is computed early."""

    results: tuple[str | Constant, ...]
    """For each leaf of the result, the name of its value, or the constant that it always is."""

    early: tuple[Early, ...]
    """What is computed on the whole batch before the first microbatch."""

    out_tree: Any
    out_keys: tuple[Any, ...]
    """For each leaf of the result, the type of the random keys that it is wrapped in, or None."""

    out_weak: tuple[bool, ...]
    """For each leaf of the result, whether it takes the type of what it meets."""

    callbacks: Callbacks
    """What is called with those of `results` that follow the leaves of the result."""

    def with_copies(self, original: Mapping[str, str]) -> Trace:
        """The same where operators have copies, which run the original ones' equations."""
        known = {copy: name for copy, name in original.items() if name in self.equations}
        equations = {copy: self.equations[name] for copy, name in known.items()}
        operands = {copy: self.operands[name] for copy, name in known.items()}
        return replace(
            self,
            equations={**self.equations, **equations},
            operands={**self.operands, **operands},
        )

    def flatten(self, arguments: Any) -> list[Any]:
        """The values of `arguments`, from what the user passes to the step."""
        leaves = [
            jax.random.key_data(leaf) if argument.keys is not None else leaf
            for leaf, argument in zip(jax.tree.leaves(arguments), self.arguments, strict=False)
        ]
        if not self.early:
            return leaves
        values = dict(zip((a.name for a in self.arguments), leaves, strict=False))
        for early in self.early:
            # Arguments may lie on the devices of different stages; these are small.
            with computing_early(early.reads):
                made = early.function(*(np.asarray(values[name]) for name in early.reads))
            values.update(zip((a.name for a in early.makes), made, strict=True))
        return [values[a.name] for a in self.arguments]

    def unflatten(self, results: Sequence[Any]) -> Any:
        """What the step returns to the user, from the values of `results`."""
        n_leaves = len(self.out_keys)
        self.callbacks.call(results[n_leaves:])
        results, found = results[:n_leaves], []
        for result, dtype, weak in zip(results, self.out_keys, self.out_weak, strict=True):
            array = result if isinstance(result, jax.Array) else jnp.asarray(result)
            if dtype is not None:
                array = _compat.wrap_keys(_compat.with_whole_keys(array, dtype), dtype)
            found.append(_compat.as_weak(array) if weak else array)
        return jax.tree.unflatten(self.out_tree, found)


def trace(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    batch_argnums: Sequence[int],
    microbatches: int,
) -> Trace:
    """Trace `function` at its arguments' shapes and types; their values are not read.

    Args:
        function: A training step that differentiates its loss with JAX.
        arguments: Trees of arrays or of `jax.ShapeDtypeStruct`.
        batch_argnums: Which arguments hold the batch, in the leading dim of every leaf.
        microbatches: Into how many parts the batch is cut.

    Raises:
        BatchError: The batch cannot be cut into so many parts.
        AccumulationError: The step is not a sum over its examples.
        UnsupportedStepError: The step calls back from loops, or returns nothing of its gradient.
    """
    return Capture(function, arguments, batch_argnums).at(microbatches)


class Capture:
    """A step, traced once, from which a `Trace` for any number of microbatches can be made.

    Args:
        function: A training step that differentiates its loss with JAX.
        arguments: Trees of arrays or of `jax.ShapeDtypeStruct`.
        batch_argnums: Which arguments hold the batch, in the leading dim of every leaf.

    Raises:
        BatchError: The batch is empty.
        UnsupportedStepError: The step calls back from loops, or returns nothing of its gradient.
    """

    def __init__(
        self, function: Callable[..., Any], arguments: Sequence[Any], batch_argnums: Sequence[int]
    ) -> None:
        self._arguments = list(describe(function, arguments, batch_argnums))
        _check_not_empty(self._arguments)
        closed, outputs = _traced(function, arguments)
        with doing("reading the traced step"):
            self._read(closed, outputs, arguments, batch_argnums)

    def _read(
        self,
        closed: ClosedJaxpr,
        outputs: Outputs,
        arguments: Sequence[Any],
        batch_argnums: Sequence[int],
    ) -> None:
        """Make the program flat, and sort its equations."""
        closed, self._outputs, self._out_keys, self._callbacks = _flat(closed, outputs)
        phases = phases_of(closed.jaxpr.eqns)
        repeated = _compat.repeated_equations(closed, phases)
        closed = _compat.without_repeated(closed, repeated)
        phases = [phase for index, phase in enumerate(phases) if index not in repeated]
        self._flat = Flat(closed, tuple(phases))
        aliases = match_state(arguments, self._outputs, batch_argnums)
        self._aliases = without_gradients(aliases, closed.jaxpr, self._arguments)
        self._early: list[Early] = []
        self._rules = {"time": Rules(masked=False), "space": Rules(masked=True)}
        self._full: tuple[Flat, Program] | None = None
        draws = keys_of_draws(closed.jaxpr, phases, self._free_inputs(self._flat))
        if draws:
            self._compute_early(dict.fromkeys(draws), {})

    @property
    def dtypes(self) -> frozenset[str]:
        """Of all that the step computes with."""
        jaxpr = self._flat.closed.jaxpr
        made = (v for equation in jaxpr.eqns for v in equation.outvars)
        values = (*jaxpr.invars, *jaxpr.constvars, *made)
        return frozenset(map(str, {_compat.aval(v).dtype for v in values}))

    def at(self, microbatches: int) -> Trace:
        """The step in so many microbatches.

        Raises:
            BatchError: The batch cannot be cut into so many parts.
            AccumulationError: The step is not a sum over its examples.
        """
        if microbatches == 1:
            return self._trace(self._program(self._flat, 1, "space"), 1, None)
        _check_divisible(self._arguments, microbatches)
        saved = self._flat, list(self._arguments), list(self._early)
        try:
            return self._cut(microbatches)
        finally:
            self._flat, self._arguments, self._early = saved

    def _cut(self, microbatches: int) -> Trace:
        while True:
            full = self._whole()
            variables = {name: variable for variable, name in full.names.items()}
            free = {full.names[v] for v in self._free_inputs(self._flat)}
            try:
                found = accumulate(
                    full.graph, microbatches, equal=full.equal, zeros=full.zeros, free=free
                )
            except AccumulationError as error:
                equation = full.equations.get(error.operator or "")
                if equation is None:
                    raise
                raise error.written(f"at {_compat.line_of(equation)}") from None
            batch_dim = {variables[n]: d for n, d in found.batch_dim.items() if n in variables}
            if not found.early:
                break
            indices = {name: index for index, name in enumerate(full.order)}
            self._compute_early(
                {
                    variables[name]: readers and [indices[reader] for reader in readers]
                    for name, readers in found.early.items()
                },
                batch_dim,
            )
        parts = [variables[name] for name in found.parts]
        positions = self._number_examples() if parts else None
        if positions is not None:
            batch_dim[positions] = 0
        flat, totals = cut(self._flat, batch_dim, parts, microbatches, positions)
        program = self._program(flat, microbatches, "space")
        found.sums |= {program.names[v] for v in totals.values()}
        return self._trace(program, microbatches, found)

    def _whole(self) -> Program:
        """The program of the whole batch, which is the same for each number of microbatches."""
        if self._full is not None and self._full[0] is self._flat:
            return self._full[1]
        full = self._program(self._flat, 1, "time")
        if self._full is None:  # what is computed early for one number need not be for others
            self._full = self._flat, full
        return full

    def _program(self, flat: Flat, microbatches: int, over: Literal["time", "space"]) -> Program:
        """With rules of what can be cut, into microbatches or over devices."""
        aliases, rules = self._aliases, self._rules[over]
        return Program(flat.closed, self._arguments, aliases, microbatches, flat.phases, rules)

    def _trace(self, program: Program, microbatches: int, found: Any) -> Trace:
        graph, summed = (program.graph, ()) if found is None else found.arrange(program.graph)
        return Trace(
            Step(graph, microbatches, summed, fingerprint(graph, microbatches)),
            program.equations,
            program.operands,
            program.constants,
            tuple(self._arguments),
            program.results,
            tuple(self._early),
            self._outputs.tree,
            self._out_keys,
            tuple(bool(leaf.weak_type) for leaf in self._outputs.leaves),
            self._callbacks,
        )

    def _free_inputs(self, flat: Flat) -> list[Var]:
        """What early computation may read: no weights, nor anything that is as large as they."""
        jaxpr = flat.closed.jaxpr
        free = [
            variable
            for variable, argument in zip(jaxpr.invars, self._arguments, strict=True)
            if argument.is_batch
            or argument.is_fed
            or argument.name.startswith("early.")
            or np.issubdtype(argument.dtype, np.integer)
        ]
        return [*free, *jaxpr.constvars]

    def _compute_early(self, wanted: dict[Var, Any], batch_dim: dict[Var, int]) -> None:
        self._flat, early = compute_early(self._flat, self._arguments, wanted, batch_dim)
        self._early.append(early)
        self._arguments += early.makes

    def _number_examples(self) -> Var:
        """A new argument, with which a microbatch knows its place in the batch."""
        n_examples = next(a.shape[0] for a in self._arguments if a.is_batch)
        numbers = np.arange(n_examples, dtype=np.int32)
        name = f"early.{len(self._arguments)}"
        argument = Argument(name, numbers.shape, numbers.dtype, False, True)
        self._early.append(Early((), (argument,), lambda: (numbers,)))
        self._arguments.append(argument)
        closed = self._flat.closed
        variable = _compat.variable_of(numbers)
        inputs = [*closed.jaxpr.invars, variable]
        closed = ClosedJaxpr(closed.jaxpr.replace(invars=inputs), closed.consts)
        self._flat = Flat(closed, self._flat.phases)
        return variable


def _check_not_empty(leaves: Sequence[Argument]) -> None:
    for leaf in leaves:
        if leaf.is_batch and leaf.shape[:1] == (0,):
            raise BatchError(
                "a batch holds at least one example, in the leading dim; got "
                f"{leaf.name} of shape {leaf.shape}: plan with a batch as it will be trained"
            )


def _check_divisible(leaves: Sequence[Argument], microbatches: int) -> None:
    if microbatches < 1:
        raise BatchError(f"microbatches must be at least 1; got {microbatches}")
    batch = [leaf for leaf in leaves if leaf.is_batch]
    if not batch:
        raise BatchError(
            "microbatches cut the batch, but no argument holds one: name it by batch_argnums"
        )
    for leaf in batch:
        if leaf.shape[0] % microbatches:
            raise BatchError(
                "the batch's leading dim must be a multiple of microbatches; got "
                f"{leaf.name} of shape {leaf.shape} and microbatches={microbatches}"
            )


def _traced(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[ClosedJaxpr, Outputs]:
    """The program as JAX traces it, and what it returns."""
    leaves, tree = jax.tree.flatten(tuple(arguments))
    shapes = []
    for leaf in leaves:
        of = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
        shapes.append(jax.ShapeDtypeStruct(of.shape, of.dtype, weak_type=bool(of.weak_type)))
    traced = Traced(function)
    out_tree: Any = None

    def of_leaves(*leaves: Any) -> list[Any]:
        nonlocal out_tree
        found, out_tree = jax.tree.flatten(traced(*jax.tree.unflatten(tree, leaves)))
        return found

    with traced.tracing():
        closed, out_shapes = jax.make_jaxpr(of_leaves, return_shape=True)(*shapes)
    leaked = [
        v
        for v, c in zip(closed.jaxpr.constvars, closed.consts, strict=True)
        if isinstance(c, jax.core.Tracer)
    ]
    for equation in closed.jaxpr.eqns if leaked else ():
        if any(v in leaked for v in equation.invars if isinstance(v, Var)):
            raise of_an_earlier_trace(_compat.line_of(equation))
    return closed, Outputs(out_tree, out_shapes)


def _flat(
    closed: ClosedJaxpr, outputs: Outputs
) -> tuple[ClosedJaxpr, Outputs, tuple[Any, ...], Callbacks]:
    """The flat program on the numbers of keys, and what is to be known of what it returns.

    Returns:
        The program, the user's result, which of it are keys, and what is called with the rest.
    """
    numbers = list(map(numbers_of, outputs.leaves))
    keys = tuple(
        given.dtype if given.dtype != plain.dtype else None
        for given, plain in zip(outputs.leaves, numbers, strict=True)
    )
    of_keys = KeyExpansion()

    def expand(equation: JaxprEqn) -> tuple[ClosedJaxpr, bool] | None:
        if equation.primitive.name == "shard_map":
            raise UnsupportedStepError(
                "a step is written for one device, and the plan says what runs on which; "
                f"{_compat.line_of(equation)} maps over a mesh of its own: call the function "
                "without shard_map"
            )
        if equation.primitive.name in ("sharding_constraint", "reshard"):  # which plans overrule
            (operand,) = (_compat.aval(v) for v in equation.invars)
            shape = jax.ShapeDtypeStruct(operand.shape, operand.dtype)
            return jax.make_jaxpr(lambda x: x)(shape), True
        loop = unrolled(equation)
        return of_keys(equation) if loop is None else (loop, True)

    flat, callbacks = without_callbacks(_compat.inline_calls(closed, expand))
    flat = without_stacks(flat)
    live = _compat.eliminate_dead_code(flat)
    gradients = list(filter(_compat.is_backward, flat.jaxpr.eqns))
    if gradients and not any(map(_compat.is_backward, live.jaxpr.eqns)):
        raise UnsupportedStepError(
            "what a step computes is lost if nothing that it returns depends on it; this one "
            f"returns nothing of the gradient of {_compat.line_of(gradients[-1])}: return the new "
            "parameters, give it as nnx.jit(step) if it updates modules of flax.nnx in place, or "
            "call the loss without its gradient"
        )
    return live, Outputs(outputs.tree, numbers), keys, callbacks
