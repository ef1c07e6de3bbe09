"""From a JAX training step to a `TrainingStep`: trace, inline, split compute from apply, name all.

The step is traced once, on the whole batch. The program of a microbatch is cut from this trace, so
it keeps the constants of the whole batch: plain sums over microbatches give the gradient of the
whole batch, for mean and sum losses alike.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from autoshard import Operator

from frontends.base.batch_axes import BatchAxes
from frontends.base.boundary import doing
from frontends.errors import AccumulationError, BatchError
from frontends.jax.base import _compat, cudnn
from frontends.jax.base._compat import ClosedJaxpr, JaxprEqn, Var
from frontends.jax.base.arguments import (
    Argument,
    Outputs,
    check_kept,
    describe,
    match_state,
)
from frontends.jax.base.boundary import Traced, computing_early, of_an_earlier_trace
from frontends.jax.base.checksums import checksum_of
from frontends.jax.base.stacked_array import Cut, StackedArray
from frontends.jax.trace.conditionals import with_selections
from frontends.jax.trace.effects import Callbacks
from frontends.jax.trace.flat import flattened
from frontends.jax.trace.microbatch import Early, FlatProgram, compute_early, cut
from frontends.jax.trace.pad import padded, runs_on
from frontends.jax.trace.phased_graph import (
    Constant,
    PhasedGraph,
    Rules,
    phases_of,
    without_gradients,
)
from frontends.jax.trace.prng import keys_of_draws
from frontends.jax.trace.reorder import joins_of, reordered
from frontends.jax.trace.sort import sorted_by_example
from frontends.jax.trace.unstack import unstacked
from frontends.step.accumulate import Accumulation, accumulate, step_of
from frontends.step.interleaved import reordering_of
from frontends.step.padding import Shape, padding_of
from frontends.step.step import TrainingStep
from frontends.step.two_passes import made_by_first_pass


@dataclass(frozen=True)
class Trace:
    """A step and what is needed to run it in JAX."""

    step: TrainingStep
    equations: dict[str, JaxprEqn]
    """By operator name; an identity operator has none."""

    operands: dict[str, tuple[str | Constant, ...]]
    """By operator name: each operand is the name of a value or a literal constant."""

    constants: dict[str, Any]
    """Arrays that the step closes over, by value name."""

    leaves: tuple[Argument, ...]
    """The leaves of the user's arguments."""

    cuts: tuple[Cut | None, ...]
    """For each of `leaves`, how it is taken apart into several of `arguments`."""

    arguments: tuple[Argument, ...]
    """What the step reads: the leaves or their pieces, followed by the values that are computed
    early."""

    results: tuple[str | Constant, ...]
    """For each leaf of the result or its pieces, and then for each operand of a callback: the name
    of its value, or its value if this is a constant."""

    result_cuts: tuple[Cut | None, ...]
    """For each leaf of the result, whether `results` has its pieces."""

    early: tuple[Early, ...]
    """What is computed on the whole batch before the first microbatch."""

    out_tree: Any
    out_keys: tuple[Any, ...]
    """For each leaf of the result, the dtype of the typed random keys that it becomes, or None."""

    out_weak: tuple[bool, ...]
    """For each leaf of the result, whether its dtype is weak."""

    callbacks: Callbacks
    """They are called with those of `results` that follow the leaves of the result."""

    rows: Mapping[str, Sequence[int]]
    """By argument that is padded: the rows that all microbatches have of it."""

    def with_copies(self, original: Mapping[str, str]) -> Trace:
        """The same trace with copies of operators, which run the equations of the originals.

        Args:
            original: By name of a copy, the name of the original operator.
        """
        known = {copy: name for copy, name in original.items() if name in self.equations}
        equations = {copy: self.equations[name] for copy, name in known.items()}
        operands = {copy: self.operands[name] for copy, name in known.items()}
        return replace(
            self,
            equations={**self.equations, **equations},
            operands={**self.operands, **operands},
        )

    @functools.cached_property
    def checksums(self) -> dict[str, int]:
        """Checksums of its operators and constants by name, to compare processes."""
        parts: dict[str, Any] = {
            name: (equation, [c for c in self.operands[name] if not isinstance(c, str)])
            for name, equation in self.equations.items()
        }
        return {name: checksum_of(part) for name, part in {**parts, **self.constants}.items()}

    def line_of(self, name: str) -> str | None:
        """The user's line that became an operator; None for a constant."""
        return _compat.line_of(self.equations[name]) if name in self.equations else None

    @functools.cached_property
    def places(self) -> list[range]:
        """For each of `leaves`: the numbers of `arguments` that it is."""
        return ranges_of(self.cuts)

    @functools.cached_property
    def result_places(self) -> list[range]:
        """For each leaf of the result: the numbers of `results` that it is."""
        return ranges_of(self.result_cuts)

    @functools.cached_property
    def _new_state(self) -> frozenset[str]:
        """The names of results that are state of the next step."""
        outputs = self.step.graph.outputs
        return frozenset(output.value for output in outputs if output.alias is not None)

    @property
    def first_pass(self) -> Early | None:
        """What a first pass computes on the devices, for a step that has two."""
        return next((early for early in self.early if early.is_first_pass), None)

    @property
    def first_pass_arguments(self) -> tuple[list[str], list[str]]:
        """What the first pass reads: names of state, and of what each call passes in."""
        reads = () if self.first_pass is None else self.first_pass.reads
        passed = {a.name for a in self.arguments if a.is_batch or a.is_fed or is_early(a)}
        return [n for n in reads if n not in passed], [n for n in reads if n in passed]

    def flatten(
        self,
        arguments: Any,
        first_pass: Callable[[Mapping[str, Any]], Sequence[Any]] | None = None,
    ) -> list[Any]:
        """The values of `self.arguments` if the user calls the step with these arguments.

        Args:
            arguments: The arguments.
            first_pass: Computes what `self.first_pass` makes from values by name.
        """
        pieces: list[Any] = []
        for leaf, argument, how in zip(
            jax.tree.leaves(arguments), self.leaves, self.cuts, strict=True
        ):
            if how is not None:
                if isinstance(leaf, jax.Array):
                    check_kept(argument.name, leaf)
                pieces += how.pieces(leaf)
            elif isinstance(leaf, StackedArray):  # of a step with another plan
                pieces.append(leaf.whole())
            else:
                pieces.append(leaf if argument.keys is None else jax.random.key_data(leaf))
        if not self.early:
            return pieces
        values = dict(zip((a.name for a in self.arguments), pieces, strict=False))
        for early in self.early:
            if early.is_first_pass and first_pass is not None:
                computed = first_pass(values)
            else:
                # As numpy arrays: they may lie on devices of different stages, and they are small.
                with computing_early(early.reads):
                    computed = early.function(*(np.asarray(values[name]) for name in early.reads))
            values.update(zip((a.name for a in early.makes), computed, strict=True))
        return [values[a.name] for a in self.arguments]

    def taken_apart(self, arguments: Any) -> list[jax.Array]:
        """The state among the user's arguments that is not in pieces yet, so that it is copied."""
        updated = {output.alias for output in self.step.graph.outputs}
        leaves = zip(jax.tree.leaves(arguments), self.places, self.cuts, strict=True)
        return [
            leaf
            for leaf, place, how in leaves
            if how is not None
            and isinstance(leaf, jax.Array)
            and not (isinstance(leaf, StackedArray) and leaf.cut == how)
            and self.arguments[place.start].name in updated
        ]

    def unflatten(self, results: Sequence[Any]) -> Any:
        """What the step returns to the user, given the values of `self.results`.

        The step's callbacks are called first.
        """
        places = self.result_places
        self.callbacks.call(results[places[-1].stop :] if places else results)
        leaves: list[jax.Array] = []
        for place, how, dtype, weak in zip(
            places, self.result_cuts, self.out_keys, self.out_weak, strict=True
        ):
            arrays = [
                r if isinstance(r, jax.Array) else jnp.asarray(r)
                for r in results[place.start : place.stop]
            ]
            if dtype is not None:
                (array,) = arrays
                arrays = [_compat.wrap_keys(_compat.with_whole_keys(array, dtype), dtype)]
            if weak:
                arrays = list(map(_compat.as_weak, arrays))
            if how is None:
                leaves.append(arrays[0])
            elif self.results[place.start] in self._new_state:
                leaves.append(StackedArray(how.axis, arrays))
            else:  # all lie on one device
                leaves.append(jnp.concatenate(arrays, how.axis))
        return jax.tree.unflatten(self.out_tree, leaves)


def trace(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    batch_argnums: Sequence[int],
    microbatches: int,
) -> Trace:
    """Trace `function` for the shapes and dtypes of its arguments; their values are not read.

    Args:
        function: A training step that differentiates its loss with JAX.
        arguments: Trees of arrays or of `jax.ShapeDtypeStruct`.
        batch_argnums: Which arguments hold the batch, in the leading dim of every leaf.
        microbatches: The number of parts into which the batch is cut.

    Raises:
        BatchError: The batch cannot be cut into that many parts.
        AccumulationError: The step is not a sum over its examples.
        UnsupportedStepError: The step has callbacks in loops, or returns nothing that depends on
            its gradient.
    """
    return Capture(function, arguments, batch_argnums).at(microbatches)


Named = Callable[[Sequence[Any], Sequence[Argument]], tuple[Argument, ...]]
"""Gives the leaves of arguments other names."""


class Capture:
    """A step, traced once, from which a `Trace` for any number of microbatches can be made.

    Args:
        function: A training step that differentiates its loss with JAX.
        arguments: Trees of arrays or of `jax.ShapeDtypeStruct`.
        batch_argnums: Which arguments hold the batch.
        batch_axes: Which dims of the batch hold the examples, as in `describe`.
        named: Gives the leaves of arguments the names that another step, which this one follows,
            has for them.
        statistics: Whether microbatches may use statistics of their own examples.

    Raises:
        BatchError: The batch is empty, or a dim that `batch_axes` names does not exist.
        UnsupportedStepError: The step has callbacks in loops, or returns nothing that depends on
            its gradient.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        batch_argnums: Sequence[int],
        batch_axes: BatchAxes = 0,
        named: Named | None = None,
        *,
        statistics: bool = False,
    ) -> None:
        self._statistics = statistics
        self._leaves = describe(function, arguments, batch_argnums, batch_axes)
        if named is not None:
            self._leaves = named(arguments, self._leaves)
        _check_not_empty(self._leaves)
        closed, outputs = _traced(function, arguments)
        self._cuts: tuple[Cut | None, ...] = (None,) * len(self._leaves)
        self._result_cuts: tuple[Cut | None, ...] = (None,) * len(outputs.leaves)
        with doing("reading the traced step"):
            self._read(closed, outputs, arguments, batch_argnums)
            self._with_stacks = self._flat
            self._prepare(self._leaves)

    def _read(
        self,
        closed: ClosedJaxpr,
        outputs: Outputs,
        arguments: Sequence[Any],
        batch_argnums: Sequence[int],
    ) -> None:
        """Make the program flat, and sort its equations into phases."""
        closed, self._outputs, self._out_keys, self._callbacks = flattened(closed, outputs)
        closed = with_selections(closed, phases_of(closed.jaxpr.eqns))
        phases = phases_of(closed.jaxpr.eqns)
        repeated = _compat.repeated_equations(closed, phases)
        closed = _compat.without_repeated(closed, repeated)
        phases = [phase for index, phase in enumerate(phases) if index not in repeated]
        self._flat = FlatProgram(closed, tuple(phases))
        aliases = match_state(arguments, self._outputs, batch_argnums)
        self._aliases = without_gradients(aliases, closed.jaxpr, self._leaves)
        self._rules = {"time": Rules(masked=False), "space": Rules(masked=True)}

    def unstacked(self) -> Capture | None:
        """The same step with the weights of stacked layers apart; None if it has none."""
        with doing("taking stacked layers apart"):
            flat, rules = self._with_stacks, self._rules["time"]
            made = unstacked(flat, self._leaves, self._aliases, rules)
            if made is None:
                return None
            other = copy(self)
            other._flat = made.flat
            other._cuts = tuple(made.inputs.get(i) for i in range(len(self._leaves)))
            other._result_cuts = tuple(made.results.get(i) for i in range(len(self._result_cuts)))
            arguments, places = ranges_of(other._cuts), ranges_of(other._result_cuts)
            other._aliases = {
                k: old
                for result, leaf in self._aliases.items()
                for k, old in zip(places[result], arguments[leaf], strict=True)
            }
            other._prepare(
                [
                    piece
                    for leaf, cut in zip(self._leaves, other._cuts, strict=True)
                    for piece in ([leaf] if cut is None else _pieces_of(leaf, cut))
                ]
            )
            return other

    def _prepare(self, arguments: Sequence[Argument]) -> None:
        """Give the program the order of its values that microbatches need."""
        self._arguments = list(arguments)
        self._early: list[Early] = []
        self._full: tuple[FlatProgram, PhasedGraph] | None = None
        self._lead_with_examples()
        self._put_examples_first()
        flat = self._flat
        draws = keys_of_draws(flat.closed.jaxpr, flat.phases, self._free_inputs(flat))
        if draws:
            self._compute_early(dict.fromkeys(draws), {})
            self._full = None

    def _lead_with_examples(self) -> None:
        """Read leaves of the batch with examples in another dim as such with it in front."""
        inputs = zip(self._flat.closed.jaxpr.invars, self._arguments, strict=True)
        axes = {v: a.batch_axis for v, a in inputs if a.batch_axis is not None}
        if axes:
            self._compute_early(dict.fromkeys(axes), axes)

    @property
    def batch_sizes(self) -> list[int]:
        """How many slices along the examples each leaf of the batch has."""
        return [a.shape[0] for a in self._arguments if a.is_batch]

    def _put_examples_first(self) -> None:
        """Reorder the values that interleave the examples of a batch, or sort rows of several."""
        examples = math.gcd(*self.batch_sizes)
        if examples < 2:
            return
        whole = self._whole()
        joins = joins_of(whole.equations, whole.names)
        how = reordering_of(whole.graph, examples, joins)
        if how is not None:
            self._flat = reordered(self._flat, whole.names, how, whole.equal)
            self._full = None
        while (flat := sorted_by_example(self._flat, self._whole(), examples)) is not self._flat:
            self._flat = flat  # rows that follow from these may be tied to examples now
            self._full = None

    @property
    def dtypes(self) -> frozenset[str]:
        """The dtypes of all values that the step reads or computes."""
        jaxpr = self._flat.closed.jaxpr
        computed = (v for equation in jaxpr.eqns for v in equation.outvars)
        values = (*jaxpr.invars, *jaxpr.constvars, *computed)
        return frozenset(map(str, {_compat.aval(v).dtype for v in values}))

    def at(self, microbatches: int, padded_to: int = 0) -> Trace:
        """The trace of the step in this number of microbatches.

        Args:
            microbatches: The number.
            padded_to: To how many examples each of them is padded; 0 for none.

        Raises:
            BatchError: The batch cannot be cut into that many parts.
            AccumulationError: The step is not a sum over its examples.
        """
        if microbatches == 1:
            flat, rows = self._padded(self._flat, 1, padded_to)
            return self._trace(self._program(flat, 1, "space"), 1, None, rows)
        _check_divisible(self._arguments, microbatches)
        saved = self._flat, list(self._arguments), list(self._early)
        try:
            return self._cut(microbatches, padded_to)
        finally:
            self._flat, self._arguments, self._early = saved

    def _cut(self, microbatches: int, padded_to: int) -> Trace:
        while True:
            full = self._whole()
            variables = {name: variable for variable, name in full.names.items()}
            free = {full.names[v] for v in self._free_inputs(self._flat)}
            try:
                accumulation = accumulate(
                    full.graph,
                    microbatches,
                    equal=full.equal,
                    zeros=full.zeros,
                    summands=full.summands,
                    free=free,
                    statistics=self._statistics,
                )
            except AccumulationError as error:
                if not self._statistics and self._add_first_pass(full, microbatches, free):
                    continue
                equation = full.equations.get(error.operator or "")
                if equation is None:
                    raise
                raise error.written(f"at {_compat.line_of(equation)}") from None
            batch_dim = {
                variables[name]: dim
                for name, dim in accumulation.batch_dim.items()
                if name in variables
            }
            if not accumulation.early:
                break
            indices = {name: index for index, name in enumerate(full.order)}
            self._compute_early(
                {
                    variables[name]: readers and [indices[reader] for reader in readers]
                    for name, readers in accumulation.early.items()
                },
                batch_dim,
            )
        parts = [variables[name] for name in accumulation.parts]
        positions = self._number_examples() if parts else None
        if positions is not None:
            batch_dim[positions] = 0
        indices = {name: index for index, name in enumerate(full.order)}
        flat, totals = cut(
            self._flat,
            batch_dim,
            parts,
            microbatches,
            positions,
            {variables[name] for name in accumulation.of_parts},
            {variables[name] for name in accumulation.late if name in variables},
            {
                indices[op]: {variables[name]: factor for name, factor in factors.items()}
                for op, factors in accumulation.scales(microbatches).items()
            },
            [variables[name] for name in accumulation.averaged],
        )
        flat, rows = self._padded(flat, microbatches, padded_to)
        program = self._program(flat, microbatches, "space")
        accumulation.rename(
            {full.names[v]: name for v, name in program.names.items() if v in full.names}
        )
        accumulation.sums |= {program.names[v] for v in totals.values()}
        return self._trace(program, microbatches, accumulation, rows)

    def _add_first_pass(self, full: PhasedGraph, microbatches: int, free: set[str]) -> bool:
        """Let a first pass compute what compares examples; whether there is such a pass."""
        if any(early.is_first_pass for early in self._early):
            return False
        made = made_by_first_pass(
            full.graph,
            microbatches,
            equal=full.equal,
            zeros=full.zeros,
            summands=full.summands,
            free=free,
        )
        if not made:
            return False
        variables = {name: variable for variable, name in full.names.items()}
        batch_dim = {variables[name]: dim for name, dim in made.items() if dim is not None}
        wanted = {variables[name]: None for name in made}
        self._flat, early = compute_early(
            self._flat, self._arguments, wanted, batch_dim, is_first_pass=True
        )
        self._early.append(early)
        self._arguments += early.makes
        return True

    def _padded(
        self, flat: FlatProgram, microbatches: int, padded_to: int
    ) -> tuple[FlatProgram, dict[str, list[int]]]:
        """The program of a microbatch with padding, and `Trace.rows`."""
        examples = math.gcd(*self.batch_sizes) // microbatches
        if padded_to in (0, examples):
            return flat, {}
        before = self._program(flat, microbatches, "time")

        def runs(op: Operator, operands: Sequence[Shape], results: Sequence[Shape]) -> bool:
            return runs_on(before.equations[op.name], operands, results)

        padding = padding_of(before.graph, examples, padded_to, before.zeros, runs)
        inputs = zip(self._arguments, flat.closed.jaxpr.invars, strict=True)
        batch = {v: a for a, v in inputs if a.is_batch and a.name in padding.dim}
        rows = {a.name: padding.rows(a.shape[0], microbatches) for a in batch.values()}
        return padded(flat, before.names, batch, padding), rows

    def _whole(self) -> PhasedGraph:
        """The program of the whole batch, which is the same for each number of microbatches."""
        if self._full is not None and self._full[0] is self._flat:
            return self._full[1]
        full = self._program(self._flat, 1, "time")
        if self._full is None:  # later ones are for one number of microbatches, with its early part
            self._full = self._flat, full
        return full

    def _program(
        self, flat: FlatProgram, microbatches: int, over: Literal["time", "space"]
    ) -> PhasedGraph:
        """The program, with rules for cutting it into microbatches (time) or shards (space)."""
        aliases, rules = self._aliases, self._rules[over]
        return PhasedGraph(flat.closed, self._arguments, aliases, microbatches, flat.phases, rules)

    def _trace(
        self,
        program: PhasedGraph,
        microbatches: int,
        accumulation: Accumulation | None,
        rows: Mapping[str, Sequence[int]],
    ) -> Trace:
        return Trace(
            step_of(program.graph, microbatches, accumulation),
            program.equations,
            program.operands,
            program.constants,
            self._leaves,
            self._cuts,
            tuple(self._arguments),
            program.results,
            self._result_cuts,
            tuple(self._early),
            self._outputs.tree,
            self._out_keys,
            tuple(bool(leaf.weak_type) for leaf in self._outputs.leaves),
            self._callbacks,
            rows,
        )

    def _free_inputs(self, flat: FlatProgram) -> list[Var]:
        """The inputs that early computation may read: no weights, and nothing as large as they."""
        jaxpr = flat.closed.jaxpr
        free = [
            variable
            for variable, argument in zip(jaxpr.invars, self._arguments, strict=True)
            if argument.is_batch
            or argument.is_fed
            or is_early(argument)
            or np.issubdtype(argument.dtype, np.integer)
        ]
        return [*free, *jaxpr.constvars]

    def _compute_early(self, wanted: dict[Var, Any], batch_dim: dict[Var, int]) -> None:
        self._flat, early = compute_early(self._flat, self._arguments, wanted, batch_dim)
        self._early.append(early)
        self._arguments += early.makes

    def _number_examples(self) -> Var:
        """Add an argument that numbers the examples, so that a microbatch knows its position."""
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
        self._flat = FlatProgram(closed, self._flat.phases)
        return variable


def is_early(argument: Argument) -> bool:
    """Whether an argument is computed before the first microbatch, and not the user's."""
    return argument.name.startswith("early.")


def ranges_of(cuts: Sequence[Cut | None]) -> list[range]:
    """For each leaf, the numbers of its pieces if the pieces of all leaves follow each other."""
    ends = itertools.accumulate((1 if cut is None else cut.n for cut in cuts), initial=0)
    return [range(*span) for span in itertools.pairwise(ends)]


def _pieces_of(leaf: Argument, cut: Cut) -> list[Argument]:
    shape = cut.shape(leaf.shape)
    return [replace(leaf, name=f"{leaf.name}[{i}]", shape=shape) for i in range(cut.n)]


def _check_not_empty(leaves: Sequence[Argument]) -> None:
    for leaf in leaves:
        if (leaf.is_batch or leaf.batch_axis) and leaf.shape[leaf.batch_axis or 0] == 0:
            raise BatchError(
                "a batch holds at least one example; got "
                f"{leaf.name} of shape {leaf.shape}: plan with a batch as it will be trained"
            )


def _check_divisible(leaves: Sequence[Argument], microbatches: int) -> None:
    if microbatches < 1:
        raise BatchError(f"microbatches must be at least 1; got {microbatches}")
    batch = [leaf for leaf in leaves if leaf.is_batch or leaf.batch_axis is not None]
    if not batch:
        raise BatchError(
            "microbatches cut the batch, but no argument holds one: name it by batch_argnums"
        )
    for leaf in batch:
        axis = leaf.batch_axis or 0
        if leaf.shape[axis] % microbatches:
            raise BatchError(
                f"the batch's {f'dim {axis}' if axis else 'leading dim'} must be a multiple of "
                f"microbatches; got {leaf.name} of shape {leaf.shape} and "
                f"microbatches={microbatches}"
            )


def _traced(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[ClosedJaxpr, Outputs]:
    """The program as JAX traces it, and what it returns."""
    leaves, tree = jax.tree.flatten(tuple(arguments))
    shapes = []
    for leaf in leaves:
        aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
        shapes.append(jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=bool(aval.weak_type)))
    traced = Traced(function)
    out_tree: Any = None

    def of_leaves(*leaves: Any) -> list[Any]:
        nonlocal out_tree
        results, out_tree = jax.tree.flatten(traced(*jax.tree.unflatten(tree, leaves)))
        return results

    with traced.tracing(), cudnn.presumed():
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
