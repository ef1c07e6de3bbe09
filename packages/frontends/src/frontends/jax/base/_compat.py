"""Everything private in JAX that this package uses.

Tested with jax 0.10.2. `jax.extend.core` exposes the jaxpr types but neither fresh variables nor
dead-code elimination, and no public function of JAX inlines nested calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import config as _config
from jax._src import core as _core
from jax._src import distributed, dtypes, source_info_util, xla_bridge
from jax._src.api_util import InternalFloatingPointError
from jax._src.array import ArrayImpl
from jax._src.interpreters import pxla
from jax._src.random import prng
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.interpreters import mlir, partial_eval

from frontends.base.sources import shown, whose

BODY_OF_CALL = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "call": "call_jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "composite": "jaxpr",
    "custom_partitioning": "call",
    "custom_vmap_call": "call",
    "linear_call": "callee",
}
"""Calls that only wrap a body: primitive name -> parameter that holds the body."""

Atom = Var | Literal


class Shaped(Protocol):
    """Shape and dtype of an array, known before it exists; every value of a step has them."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...


def aval(atom: Atom) -> Shaped:
    """Shape and type of an operand or result."""
    return cast("Shaped", atom.aval)


def _body(equation: JaxprEqn) -> ClosedJaxpr | None:
    parameter = BODY_OF_CALL.get(equation.primitive.name)
    body = equation.params.get(parameter) if parameter else None
    if body is None or isinstance(body, ClosedJaxpr):
        return body
    return ClosedJaxpr(body, ())


Expand = Callable[[JaxprEqn], tuple[ClosedJaxpr, bool] | None]
"""Returns the program that replaces an equation, or None to keep the equation. The boolean says
whether calls in that program are inlined, too; if not, the program is a single equation."""


def inline_calls(closed: ClosedJaxpr, expand: Expand = lambda equation: None) -> ClosedJaxpr:
    """The same program without nested calls; name stacks of call and body are joined.

    The joined stack matters: for equations inside a called function, only the call has the marks
    of forward and backward (`jvp`, `transpose`) on its name stack.

    Args:
        closed: The program.
        expand: Replaces other equations by programs with the same results. Operands and results of
            such a program may have other types, if all equations that touch them are replaced.
    """
    equations: list[JaxprEqn] = []
    constants: dict[Var, Any] = {}

    def walk(closed: ClosedJaxpr, arguments: Sequence[Atom], outer: Any) -> list[Atom]:
        jaxpr = closed.jaxpr
        environment: dict[Var, Atom] = dict(zip(jaxpr.invars, arguments, strict=True))

        def constant(array: Any) -> Var:
            fresh = variable_of(array)
            constants[fresh] = array
            return fresh

        for variable, value in zip(jaxpr.constvars, closed.consts, strict=True):
            environment[variable] = constant(key_data(value) if is_key(variable) else value)

        def read(atom: Atom) -> Atom:
            if isinstance(atom, Literal):
                return constant(key_data(atom.val)) if is_key(atom) else atom
            return environment[atom]

        for equation in jaxpr.eqns:
            stack = equation.source_info.name_stack
            stack = stack if outer is None else outer + stack
            inputs = [read(atom) for atom in equation.invars]
            body, again = _body(equation), True
            if body is None:
                if equation.primitive.name == "scan":  # its marks tell whether it is a gradient's
                    info = equation.source_info.replace(name_stack=stack)
                    equation = equation.replace(source_info=info)
                body, again = expand(equation) or (None, True)
            if body is not None and again:
                results = walk(body, inputs, stack)
                environment.update(zip(equation.outvars, results, strict=True))
                continue
            if body is not None:
                (inner,) = body.jaxpr.eqns
                operands = dict(zip(body.jaxpr.invars, inputs, strict=True))
                inputs = [v if isinstance(v, Literal) else operands[v] for v in inner.invars]
            else:
                inner = equation
            outputs = [_core.Var(v.aval) for v in inner.outvars]
            environment.update(zip(equation.outvars, outputs, strict=True))
            info = equation.source_info.replace(name_stack=stack)
            equations.append(inner.replace(invars=inputs, outvars=outputs, source_info=info))
        return [read(atom) for atom in jaxpr.outvars]

    inputs = [_numbers_like(v) if is_key(v) else variable_like(v) for v in closed.jaxpr.invars]
    outputs = walk(closed, inputs, None)
    return program(list(constants), inputs, outputs, equations, list(constants.values()), closed)


def with_flat_bodies(equation: JaxprEqn, expand: Expand) -> ClosedJaxpr:
    """An equation whose bodies have no calls and no typed keys, as a program.

    Args:
        equation: A loop or a branch.
        expand: As for `inline_calls`.
    """
    bodies: list[ClosedJaxpr] = []

    def flat(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(flat, value))
        if not isinstance(value, ClosedJaxpr):
            return value
        bodies.append(inline_calls(value, expand))
        return bodies[-1]

    params = {name: flat(value) for name, value in equation.params.items()}
    inputs: list[Atom] = [
        _numbers_like(v) if is_key(v) else variable_like(v) for v in equation.invars
    ]
    outputs = [_numbers_like(v) if is_key(v) else variable_like(v) for v in equation.outvars]
    flattened = equation.replace(invars=inputs, outvars=outputs, params=params)
    return program((), cast("list[Var]", inputs), outputs, [flattened], (), bodies[0])


def written_at(closed: ClosedJaxpr, equation: JaxprEqn) -> ClosedJaxpr:
    """The program, with the user's line of another equation that it replaces."""
    line = equation.source_info.traceback
    equations = [
        e.replace(source_info=e.source_info.replace(traceback=line)) for e in closed.jaxpr.eqns
    ]
    return ClosedJaxpr(closed.jaxpr.replace(eqns=equations), closed.consts)


def _numbers_like(variable: Any) -> Var:
    numbers = shape_of_numbers(variable.aval)
    return _core.Var(_core.ShapedArray(numbers.shape, numbers.dtype))


def replaced(atoms: Sequence[Atom], new: Mapping[Var, Var]) -> list[Atom]:
    """Operands or outputs in which some variables are replaced by new ones."""
    return [atom if isinstance(atom, Literal) else new.get(atom, atom) for atom in atoms]


def reading(equation: JaxprEqn, new: Mapping[Var, Var]) -> JaxprEqn:
    """The same equation, but it reads new variables in place of some."""
    if not any(isinstance(v, Var) and v in new for v in equation.invars):
        return equation
    return cast("JaxprEqn", equation.replace(invars=replaced(equation.invars, new)))


def program(
    constvars: Sequence[Var],
    inputs: Sequence[Var],
    outputs: Sequence[Atom],
    equations: Sequence[JaxprEqn],
    constants: Sequence[Any],
    like: ClosedJaxpr,
) -> ClosedJaxpr:
    """A program of these parts; everything else is as in the program `like`."""
    jaxpr = like.jaxpr.replace(
        constvars=list(constvars),
        invars=list(inputs),
        outvars=list(outputs),
        eqns=list(equations),
        debug_info=like.jaxpr.debug_info.with_unknown_names(),
    )
    return ClosedJaxpr(jaxpr, list(constants))


def variable_of(array: Any) -> Var:
    """A fresh variable with the shape and dtype of an array."""
    return _core.Var(jax.typeof(array))


def variable_like(variable: Any, shape: tuple[int, ...] | None = None) -> Var:
    """A fresh variable of the same dtype, and of the same shape unless another one is given."""
    aval = variable.aval
    return _core.Var(aval if shape is None else aval.update(shape=shape))


def eliminate_dead_code(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program without equations that no output needs; all inputs stay."""
    jaxpr, _ = partial_eval.dce_jaxpr(
        closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True
    )
    return ClosedJaxpr(jaxpr, closed.consts)


def output(closed: ClosedJaxpr, place: int) -> tuple[ClosedJaxpr, list[int]]:
    """The program of one output alone, and which of the inputs it reads."""
    wanted = [i == place for i in range(len(closed.jaxpr.outvars))]
    live, used = partial_eval.dce_jaxpr(closed.jaxpr, wanted)
    return ClosedJaxpr(live, closed.consts), [i for i, is_used in enumerate(used) if is_used]


def repeated_equations(closed: ClosedJaxpr, phases: Sequence[int]) -> dict[int, int]:
    """Equations that compute the same as an earlier one of their phase: index -> earlier index.

    XLA would merge them in any case, and then the program would communicate less than its plan.
    Equations of different phases are not merged, as rematerialisation means to compute twice.
    Neither are constants (masks, zeros): each layer makes its own, instead of getting them from the
    first layer that needs them.
    """
    first: dict[Any, int] = {}
    canonical: dict[Var, Var] = {}
    repeated: dict[int, int] = {}
    varying = set(closed.jaxpr.invars)
    for index, (equation, phase) in enumerate(zip(closed.jaxpr.eqns, phases, strict=True)):
        if not any(isinstance(v, Var) and v in varying for v in equation.invars):
            continue
        varying.update(equation.outvars)
        operands = tuple(
            (str(atom.aval), np.asarray(atom.val).tobytes())
            if isinstance(atom, Literal)
            else canonical.get(atom, atom)
            for atom in equation.invars
        )
        params = tuple(sorted(equation.params.items(), key=lambda item: item[0]))
        key = (phase, equation.primitive, operands, params)
        try:
            earlier = first.setdefault(key, index)
        except TypeError:  # a parameter that cannot be hashed
            continue
        if earlier != index:
            repeated[index] = earlier
            kept = closed.jaxpr.eqns[earlier].outvars
            canonical.update(zip(equation.outvars, kept, strict=True))
    return repeated


def without_repeated(closed: ClosedJaxpr, repeated: Mapping[int, int]) -> ClosedJaxpr:
    """The same program without repeated equations; the earlier equations' results are read."""
    earlier: dict[Var, Var] = {}
    equations = []
    for index, equation in enumerate(closed.jaxpr.eqns):
        if index in repeated:
            kept = closed.jaxpr.eqns[repeated[index]].outvars
            earlier.update(zip(equation.outvars, kept, strict=True))
            continue
        equations.append(reading(equation, earlier))
    outputs = replaced(closed.jaxpr.outvars, earlier)
    return ClosedJaxpr(closed.jaxpr.replace(eqns=equations, outvars=outputs), closed.consts)


def is_key_type(dtype: Any) -> bool:
    """Whether a dtype is that of typed random keys."""
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def is_key(atom: Any) -> bool:
    """Whether a value is a typed random key, which has no bytes that a plan could lay out."""
    return is_key_type(atom.aval.dtype)


def holds_keys(leaf: Any) -> bool:
    """Whether a leaf, which may be any object, is an array of typed random keys."""
    return hasattr(leaf, "dtype") and is_key_type(leaf.dtype)


def key_data(keys: Any) -> Any:
    """The numbers of typed keys."""
    return jax.random.key_data(keys)


def shape_of_numbers(keys: Shaped) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the numbers of typed keys."""
    shape = jax.ShapeDtypeStruct(keys.shape, keys.dtype)
    return cast("jax.ShapeDtypeStruct", jax.eval_shape(jax.random.key_data, shape))


def wrap_keys(numbers: Any, dtype: Any) -> Any:
    """Typed keys made of these numbers."""
    return jax.random.wrap_key_data(numbers, impl=dtype._impl)


def with_whole_keys(numbers: jax.Array, dtype: Any) -> jax.Array:
    """The numbers of keys, resharded so that no key is split, as JAX has no split keys."""
    sharding = numbers.sharding
    rank = numbers.ndim - len(dtype._impl.key_shape)
    if not isinstance(sharding, jax.sharding.NamedSharding) or not any(sharding.spec[rank:]):
        return numbers
    spec = jax.sharding.PartitionSpec(*sharding.spec[:rank])
    whole = jax.sharding.NamedSharding(sharding.mesh, spec)
    if numbers.addressable_shards:
        return cast("jax.Array", jax.device_put(numbers, whole))
    return jax.make_array_from_single_device_arrays(numbers.shape, whole, [], dtype=numbers.dtype)


def finfo(dtype: Any) -> Any:
    """`jax.numpy.finfo`, which also knows dtypes that numpy lacks, and which has no annotations."""
    return cast("Any", jnp.finfo)(dtype)


def implementation_of_keys(dtype: Any) -> Any:
    """The random number generator that typed keys belong to."""
    return dtype._impl


def bind(equation: JaxprEqn, operands: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """Run one equation's primitive on `operands`, with `params` in place of its own."""
    bound = equation.primitive.get_bind_params(params)
    functions, bound = bound if isinstance(bound, tuple) else ((), bound)
    with equation.ctx.manager:
        results = equation.primitive.bind(*functions, *operands, **bound)
    return list(results) if equation.primitive.multiple_results else [results]


def as_function(closed: ClosedJaxpr) -> Callable[..., Sequence[Any]]:
    """The program as a function of its inputs."""
    return cast("Callable[..., Sequence[Any]]", _core.jaxpr_as_fun(closed))


def is_backward(equation: JaxprEqn) -> bool:
    """Whether reverse-mode differentiation made this equation."""
    return "transpose(" in str(equation.source_info.name_stack)


def is_differentiated(equation: JaxprEqn) -> bool:
    """Whether this equation belongs to a differentiated function, forward or backward."""
    return "jvp(" in str(equation.source_info.name_stack) or is_backward(equation)


def as_forward(equation: JaxprEqn) -> JaxprEqn:
    """The equation as if no differentiation had made it."""
    info = equation.source_info
    stack = type(info.name_stack)()
    return cast("JaxprEqn", equation.replace(source_info=info.replace(name_stack=stack)))


def cudnn_attention() -> Any:
    """JAX's module of cuDNN's attention; None if this version has none of that name."""
    try:
        from jax._src.cudnn import fused_attention_stablehlo
    except ImportError:
        return None
    return fused_attention_stablehlo


def lower_on_cpu(primitive: Any, function: Callable[..., list[Any]]) -> None:
    """Let a primitive that JAX can compile for accelerators only run as a function on CPUs."""
    if primitive is not None:
        lowered = mlir.lower_fun(function, multiple_results=True)
        mlir.register_lowering(primitive, lowered, platform="cpu")


def compiler_options(platform: str) -> dict[str, Any]:
    """Options to compile with, so that `optimization_barrier` holds.

    On CPUs, XLA drops barriers before its last elimination of common subexpressions; on GPUs, after
    it.
    """
    return {"xla_disable_hlo_passes": "cse_barrier_expander"} if platform == "cpu" else {}


def aval_of(shape: tuple[int, ...], dtype: Any, weak_type: bool) -> Any:
    """The abstract value of an array."""
    return _core.ShapedArray(shape, dtype, weak_type=weak_type)


def register_array(
    kind: type[Any],
    aval: Callable[[Any], Any],
    numbers: Callable[[Any], np.ndarray[Any, Any]],
) -> None:
    """Let JAX compute with another class of arrays, as it does with those of numpy.

    Args:
        kind: A subclass of `jax.Array`.
        aval: Returns the abstract value of such an array.
        numbers: Returns it as an array of numpy, which JAX copies to its devices.
    """

    def place(arrays: Sequence[Any], shardings: Any, layouts: Any, copies: Any) -> Any:
        return pxla.shard_args(shardings, layouts, copies, list(map(numbers, arrays)))

    def canonical(array: Any) -> Any:  # as a constant that a traced function closes over
        return dtypes.canonicalize_value_handlers[np.ndarray](numbers(array))

    _core.pytype_aval_mappings[kind] = aval
    dtypes.canonicalize_value_handlers[kind] = canonical
    pxla.shard_arg_handlers[kind] = place


def trace_context() -> Any:
    """The part of JAX's configuration and contexts that is in the key of `jit`'s traces."""
    return _config.trace_context()


def as_weak(array: jax.Array) -> jax.Array:
    """The same array with a weak type, as Python's numbers have; nothing is copied."""
    strong = cast("Any", array)
    return cast(
        "jax.Array",
        ArrayImpl(
            strong.aval.update(weak_type=True),
            strong.sharding,
            strong._arrays,
            committed=strong._committed,
            _skip_checks=True,
        ),
    )


def checks_numbers() -> str | None:
    """What JAX looks for after each program: `nan`, `inf`, `nan or inf`; None if for nothing."""
    kinds = {"nan": _config.debug_nans, "inf": _config.debug_infs}
    return " or ".join(kind for kind, is_on in kinds.items() if is_on.value) or None


@contextlib.contextmanager
def not_checking_numbers() -> Iterator[None]:
    """While this context is open, JAX does not look for `nan` and `inf`."""
    with jax.debug_nans(False), jax.debug_infs(False):
        yield


def effects_of(closed: ClosedJaxpr) -> list[JaxprEqn]:
    """The innermost equations with side effects: in a call, loop or branch, those of its body."""
    equations: list[JaxprEqn] = []
    for equation in closed.jaxpr.eqns:
        if not equation.effects:
            continue
        inner = [_core.ClosedJaxpr(jaxpr, ()) for jaxpr in _core.jaxprs_in_params(equation.params)]
        equations += [e for body in inner for e in effects_of(body)] or [equation]
    return equations


def is_of_numbers(error: Exception) -> bool:
    """Whether the error says that JAX found `nan` or `inf` when it was asked to look for them."""
    return isinstance(error, FloatingPointError | InternalFloatingPointError)


def user_line(frames: Iterable[tuple[str, int, str]]) -> str | None:
    """The innermost line of the user among frames, and the line of a library that it called.

    Args:
        frames: File, line and function of each, the innermost first.

    Returns:
        The library's line alone if no frame is of the user; None if there is neither.
    """
    of_library = None
    for filename, number, function in frames:
        kind, line = whose(filename), shown(filename, number, function)
        if kind == "the user's":
            return line if of_library is None else f"{line}, in {of_library}"
        if kind == "a library's":
            of_library = of_library or line
    return of_library


def line_of(equation: JaxprEqn) -> str:
    """The user's line that became this equation, and the line of a library that it called."""
    frames = source_info_util.user_frames(equation.source_info.traceback)
    line = user_line((f.file_name, f.start_line, f.function_name) for f in frames)
    return line or "a line that is not known"


def is_initialized() -> bool:
    """Whether JAX has started its devices, so that their number is fixed."""
    return bool(xla_bridge.backends_are_initialized())


def n_cpu_devices() -> int:
    """How many virtual CPU devices JAX is configured to make; -1 if this was not set."""
    return int(getattr(jax.config, "jax_num_cpu_devices"))  # noqa: B009  it is not declared


def coordination_client() -> Any:
    """The client of `jax.distributed` that shares keys and values with other processes, or None."""
    return distributed.global_state.client


def process_of_distributed() -> tuple[int, int]:
    """This process's number and the number of processes, as `jax.distributed` has them."""
    state = distributed.global_state
    return int(state.process_id or 0), int(state.num_processes or 1)


def free(whole: jax.Array | np.ndarray[Any, Any]) -> jax.Array:
    """A replicated array as `jit` returns one: on the first device, but not committed to it.

    So it may be combined with any other array, such as one of another stage.
    """
    placed = cast("Any", jax.device_put(whole, jax.local_devices()[0]))
    return cast(
        "jax.Array",
        ArrayImpl(placed.aval, placed.sharding, placed._arrays, committed=False, _skip_checks=True),
    )


def statics_of(function: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Numbers and names of a jitted function's static arguments; empty for other functions."""
    info = getattr(getattr(function, "jitted_fn", function), "_jit_info", None)  # of NNX, or of JAX
    numbers, names = getattr(info, "static_argnums", ()), getattr(info, "static_argnames", ())
    return tuple(numbers or ()), tuple(names or ())


__all__ = [
    "ArrayImpl",
    "Atom",
    "ClosedJaxpr",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "Shaped",
    "Var",
    "as_function",
    "as_weak",
    "aval",
    "aval_of",
    "bind",
    "checks_numbers",
    "coordination_client",
    "effects_of",
    "eliminate_dead_code",
    "finfo",
    "free",
    "holds_keys",
    "implementation_of_keys",
    "inline_calls",
    "is_backward",
    "is_differentiated",
    "is_initialized",
    "is_key",
    "is_key_type",
    "is_of_numbers",
    "key_data",
    "line_of",
    "n_cpu_devices",
    "not_checking_numbers",
    "prng",
    "process_of_distributed",
    "program",
    "reading",
    "register_array",
    "repeated_equations",
    "replaced",
    "shape_of_numbers",
    "statics_of",
    "trace_context",
    "user_line",
    "variable_like",
    "variable_of",
    "with_whole_keys",
    "without_repeated",
    "wrap_keys",
]
