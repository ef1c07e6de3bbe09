"""From a JAX training step to a `Step`: trace, inline, split compute from apply, name everything.

The step is traced twice, on the whole batch and on one microbatch. The second trace has the shapes
that run; the scalar constants come from the first. A mean over the batch divides by the number of
all examples, so plain sums over microbatches give the whole batch's gradient, for mean and sum
losses alike.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from autoshard import Graph, Operator, Output, Phase, Value

from frontends.errors import AccumulationError, BatchError, UnsupportedStepError
from frontends.jax import _compat
from frontends.jax._compat import ClosedJaxpr, JaxprEqn, Literal, Var
from frontends.jax.rules import flops_of, rule_of
from frontends.step import (
    APPLY,
    BACKWARD,
    FORWARD,
    PHASE_NAMES,
    Step,
    accumulate,
    fingerprint,
    identity,
)

Constant = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Argument:
    """One leaf of the step's arguments."""

    name: str
    """As the user would write it: `params['head']`."""

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool
    """Whether it takes the type of what it meets, as Python's numbers do."""

    is_batch: bool


@dataclass(frozen=True)
class Trace:
    """A step and what is needed to run it in JAX."""

    step: Step
    equations: Mapping[str, JaxprEqn]
    """By operator name; an identity has none."""

    operands: Mapping[str, tuple[str | Constant, ...]]
    """By operator name: each operand is the name of a value or a literal constant."""

    constants: Mapping[str, Any]
    """Arrays that the step closes over, by value name."""

    arguments: tuple[Argument, ...]
    results: tuple[str | Constant, ...]
    """For each leaf of the result, the name of its value, or the constant that it always is."""

    out_tree: Any


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
        UnsupportedStepError: The step has effects, typed keys, or computes no gradient.
    """
    leaves = describe(function, arguments, batch_argnums)
    tree = jax.tree.structure(tuple(arguments))
    if microbatches != 1:
        _check_divisible(leaves, microbatches)
    full, out_shape = _make_jaxpr(function, tree, leaves, 1)
    micro = full
    if microbatches != 1:
        micro, _ = _make_jaxpr(function, tree, leaves, microbatches)
        micro = _with_constants_of(full, micro)
    full, micro = _compat.without_keys(full), _compat.without_keys(micro)
    repeated = _compat.repeated_equations(full, _phases(full.jaxpr.eqns))
    full, micro = (_compat.without_repeated(closed, repeated) for closed in (full, micro))
    aliases = _match_state(arguments, out_shape, batch_argnums)
    program = _Program(micro, leaves, aliases, microbatches)
    full_graph = _Program(full, leaves, {}, 1).graph
    graph, summed = accumulate(full_graph, program.graph, zeros=program.zeros)
    step = Step(graph, microbatches, summed, fingerprint(graph, microbatches))
    return Trace(
        step,
        program.equations,
        program.operands,
        program.constants,
        leaves,
        program.results,
        jax.tree.structure(out_shape),
    )


def describe(
    function: Callable[..., Any], arguments: Sequence[Any], batch_argnums: Sequence[int]
) -> tuple[Argument, ...]:
    """Name, shape and type of every leaf of the arguments, in flattening order."""
    try:
        names = list(inspect.signature(function).bind(*arguments).arguments)
    except (TypeError, ValueError):
        names = []
    names += [f"argument{i}" for i in range(len(names), len(arguments))]
    described = []
    batch = _positions(batch_argnums, len(arguments))
    for i, argument in enumerate(arguments):
        for path, leaf in jax.tree_util.tree_leaves_with_path(argument):
            name = names[i] + jax.tree_util.keystr(path)
            aval = jax.typeof(leaf) if not isinstance(leaf, jax.ShapeDtypeStruct) else leaf
            if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
                raise UnsupportedStepError(
                    f"arguments must have plain number types; {name} has {aval.dtype}: "
                    "pass jax.random.key_data(key) and wrap it inside the step"
                )
            weak_type = bool(aval.weak_type)
            described.append(Argument(name, tuple(aval.shape), aval.dtype, weak_type, i in batch))
    return tuple(described)


def _positions(batch_argnums: Sequence[int], n_arguments: int) -> set[int]:
    for number in batch_argnums:
        if not -n_arguments <= number < n_arguments:
            raise BatchError(
                f"batch_argnums must number some of the step's {n_arguments} arguments; got "
                f"batch_argnums={tuple(batch_argnums)}"
            )
    return {number % n_arguments for number in batch_argnums}


def _check_divisible(leaves: Sequence[Argument], microbatches: int) -> None:
    if microbatches < 1:
        raise BatchError(f"microbatches must be at least 1; got {microbatches}")
    batch = [leaf for leaf in leaves if leaf.is_batch]
    if not batch:
        raise BatchError(
            "microbatches cut the batch, but no argument holds one: name it by batch_argnums"
        )
    for leaf in batch:
        if not leaf.shape or leaf.shape[0] % microbatches:
            size = leaf.shape[0] if leaf.shape else "no dim at all"
            raise BatchError(
                "the batch's leading dim must be a multiple of microbatches; got "
                f"{leaf.name} of shape {leaf.shape} ({size}) and microbatches={microbatches}"
            )


def _make_jaxpr(
    function: Callable[..., Any], tree: Any, leaves: Sequence[Argument], parts: int
) -> tuple[ClosedJaxpr, Any]:
    shapes = []
    for leaf in leaves:
        is_cut = leaf.is_batch and parts > 1
        shape = (leaf.shape[0] // parts, *leaf.shape[1:]) if is_cut else leaf.shape
        shapes.append(jax.ShapeDtypeStruct(shape, leaf.dtype, weak_type=leaf.weak_type))
    closed, out_shape = jax.make_jaxpr(function, return_shape=True)(
        *jax.tree.unflatten(tree, shapes)
    )
    if closed.effects:
        raise UnsupportedStepError(
            "a step that is planned must be free of side effects; this one has "
            f"{', '.join(sorted(map(str, closed.effects)))}: remove prints and callbacks from it"
        )
    return _compat.eliminate_dead_code(_compat.inline_calls(closed)), out_shape


def _with_constants_of(full: ClosedJaxpr, micro: ClosedJaxpr) -> ClosedJaxpr:
    """`micro` with the scalar constants of `full`, so that means divide by all examples.

    Any other difference than shapes would make one microbatch compute something else.
    """
    before, after = full.jaxpr.eqns, micro.jaxpr.eqns
    if [e.primitive for e in before] != [e.primitive for e in after]:
        raise AccumulationError(
            "the step must run the same operations for every batch size; it runs "
            f"{len(before)} for the whole batch and {len(after)} for one microbatch: "
            "use fewer microbatches, so that each holds more than one example"
        )
    if not all(map(_equal, full.consts, micro.consts)):
        raise AccumulationError(
            "a step that runs in microbatches must close over the same arrays for every batch "
            "size; it makes one with NumPy that depends on the size of the batch: make it with "
            "jax.numpy, or use microbatches=1"
        )
    equations = []
    for old, new in zip(before, after, strict=True):
        for name in old.params.keys() - _SHAPES:
            if not _equal(old.params[name], new.params[name]):
                raise AccumulationError(
                    "a step that runs in microbatches must run the same operations for every "
                    f"batch size; {old.primitive} runs with another {name} for the whole batch "
                    "than for one microbatch: use microbatches=1"
                )
        operands = [
            x if _compat.is_scalar_literal(x) and _compat.is_scalar_literal(y) else y
            for x, y in zip(old.invars, new.invars, strict=True)
        ]
        equations.append(new.replace(invars=operands))
    return ClosedJaxpr(micro.jaxpr.replace(eqns=equations), micro.consts)


_SHAPES = frozenset(("shape", "new_sizes", "slice_sizes", "limit_indices", "sizes"))
"""Parameters of primitives that hold shapes, and may differ as far as results' shapes show it."""


def _equal(old: Any, new: Any) -> bool:
    if isinstance(old, np.ndarray | jax.Array):
        return old is new or (
            np.shape(old) == np.shape(new)
            and np.asarray(old).tobytes() == np.asarray(new).tobytes()
        )
    return bool(old == new) or str(old) == str(new)  # nested programs are equal if they print so


def _match_state(
    arguments: Sequence[Any], out_shape: Any, batch_argnums: Sequence[int]
) -> dict[int, int]:
    """Which leaf of the result replaces which leaf of the arguments in the next step.

    A result takes the place of the first argument of the same structure, shapes and types, as a
    step that returns (params, opt_state, loss) from (params, opt_state, batch) means it. Parts of
    results and of arguments count too, the largest first, so that state is found in a dict or in
    whatever else a step returns.
    """
    batch = _positions(batch_argnums, len(arguments))
    state: list[tuple[Any, range]] = []
    offset = 0
    for i, argument in enumerate(arguments):
        shapes = jax.eval_shape(lambda tree: tree, argument)
        if i not in batch:
            state += _subtrees(shapes, offset)
        offset += len(jax.tree.leaves(shapes))
    aliases: dict[int, int] = {}
    for wanted, places in sorted(_subtrees(out_shape, 0), key=lambda item: -len(item[1])):
        if aliases.keys().isdisjoint(places):
            taken = set(aliases.values())
            same = (at for known, at in state if known == wanted and taken.isdisjoint(at))
            aliases.update(zip(places, next(same, ()), strict=False))
    return aliases


def _subtrees(tree: Any, offset: int) -> list[tuple[Any, range]]:
    """A tree and its parts, parts later: structure, shapes and types, and the leaves' places."""
    leaves = jax.tree.leaves(tree)
    types = tuple((tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in leaves)
    found = [((jax.tree.structure(tree), types), range(offset, offset + len(leaves)))]
    for part in jax.tree.leaves(tree, is_leaf=lambda node: node is not tree):
        if part is not tree:
            found += _subtrees(part, offset)
            offset += len(jax.tree.leaves(part))
    return found


class _Program:
    """Names and sorts the equations of a flat jaxpr into a graph of three phases."""

    def __init__(
        self,
        closed: ClosedJaxpr,
        leaves: Sequence[Argument],
        aliases: Mapping[int, int],
        microbatches: int,
    ) -> None:
        self.equations: dict[str, JaxprEqn] = {}
        self.operands: dict[str, tuple[str | Constant, ...]] = {}
        self.constants: dict[str, Any] = {}
        self.results: tuple[str | Constant, ...] = ()
        self.zeros: set[str] = set()
        self._names: dict[Var, str] = {}
        self._values: dict[str, Value] = {}
        self._operators: list[Operator] = []
        jaxpr = closed.jaxpr
        phases = _phases(jaxpr.eqns)
        roles = _roles(jaxpr, phases, leaves)
        for variable, leaf, role in zip(jaxpr.invars, leaves, roles, strict=True):
            self._declare(variable, leaf.name, role)
        for k, (variable, array) in enumerate(zip(jaxpr.constvars, closed.consts, strict=True)):
            self._declare(variable, f"constant.{k}", "other")
            self.constants[f"constant.{k}"] = array
        inputs = tuple(self._values)
        order = sorted(range(len(phases)), key=lambda i: (phases[i], i))
        for i, equation in enumerate(jaxpr.eqns):
            self._name_results(equation, i)
        for i in order:
            self._add(jaxpr.eqns[i], i, phases[i])
        outputs = self._outputs(jaxpr.outvars, leaves, aliases)
        repeats = (microbatches, microbatches, 1)
        self.graph = Graph(
            tuple(Phase(name, n) for name, n in zip(PHASE_NAMES, repeats, strict=True)),
            tuple(self._values.values()),
            tuple(self._operators),
            inputs,
            outputs,
        )

    def _declare(self, variable: Any, name: str, role: Any = "intermediate") -> None:
        self._names[variable] = name
        aval = variable.aval
        self._values[name] = Value(name, tuple(aval.shape), str(aval.dtype), role)

    def _name_results(self, equation: JaxprEqn, index: int) -> None:
        operator = f"{equation.primitive.name}.{index}"
        for k, variable in enumerate(equation.outvars):
            self._declare(variable, operator if len(equation.outvars) == 1 else f"{operator}:{k}")

    def _add(self, equation: JaxprEqn, index: int, phase: int) -> None:
        name = f"{equation.primitive.name}.{index}"
        operands = tuple(
            _constant(atom) if isinstance(atom, Literal) else self._names[atom]
            for atom in equation.invars
        )
        if equation.primitive.name == "broadcast_in_dim" and not np.any(operands[0]):
            self.zeros.update(self._names[v] for v in equation.outvars)
        self.equations[name] = equation
        self.operands[name] = operands
        self._operators.append(
            Operator(
                name,
                equation.primitive.name,
                tuple(operand for operand in operands if isinstance(operand, str)),
                tuple(self._names[v] for v in equation.outvars),
                rule_of(equation),
                flops_of(equation),
                phase,
            )
        )

    def _outputs(
        self, atoms: Sequence[Any], leaves: Sequence[Argument], aliases: Mapping[int, int]
    ) -> tuple[Output, ...]:
        made_by_apply = {n for op in self._operators if op.phase == APPLY for n in op.outputs}
        outputs: list[Output] = []
        results: list[str | Constant] = []
        for i, atom in enumerate(atoms):
            if isinstance(atom, Literal):
                results.append(_constant(atom))
                continue
            name = self._names[atom]
            if name not in made_by_apply or name in results:
                name = self._hand_on(name, i)
            results.append(name)
            alias = leaves[aliases[i]].name if i in aliases else None
            outputs.append(Output(name, alias=alias, whole=alias is None))
        self.results = tuple(results)
        return tuple(outputs)

    def _hand_on(self, name: str, index: int) -> str:
        """Let apply hand on what compute made, or an input, so that apply makes every result."""
        value = self._values[name]
        result = f"result.{index}"
        self._values[result] = Value(result, value.shape, value.dtype)
        self._operators.append(identity(value, result))
        return result


def _constant(literal: Literal) -> Constant:
    return np.asarray(literal.val, _compat.aval(literal).dtype)


def _phases(equations: Sequence[JaxprEqn]) -> list[int]:
    """Forward, backward or apply, for each equation, without marks by the user.

    Differentiation marks what it makes; whatever feeds a marked equation is compute too, and the
    rest, which only reads gradients and losses, is apply (Alpa §6 needs the user to say so).
    """
    needed: set[Var] = set()
    is_compute = [False] * len(equations)
    for i in range(len(equations) - 1, -1, -1):
        equation = equations[i]
        if _compat.is_differentiated(equation) or any(v in needed for v in equation.outvars):
            is_compute[i] = True
            needed.update(v for v in equation.invars if isinstance(v, Var))
    if not any(_compat.is_backward(equation) for equation in equations):
        raise UnsupportedStepError(
            "a training step must compute a gradient with jax.grad, value_and_grad or vjp; "
            "none was found in what the step returns"
        )
    phases = []
    after_backward: set[Var] = set()
    for equation, computes in zip(equations, is_compute, strict=True):
        reads_backward = any(isinstance(v, Var) and v in after_backward for v in equation.invars)
        if computes and (_compat.is_backward(equation) or reads_backward):
            after_backward.update(equation.outvars)
            phases.append(BACKWARD)
        else:
            phases.append(FORWARD if computes else APPLY)
    return phases


def _roles(jaxpr: Any, phases: Sequence[int], leaves: Sequence[Argument]) -> list[str]:
    """Parameters are what forward and backward read; the other state is the optimizer's."""
    read = {
        v
        for equation, phase in zip(jaxpr.eqns, phases, strict=True)
        if phase != APPLY
        for v in equation.invars
        if isinstance(v, Var)
    }
    return [
        "batch" if leaf.is_batch else "parameter" if variable in read else "optimizer_state"
        for variable, leaf in zip(jaxpr.invars, leaves, strict=True)
    ]
