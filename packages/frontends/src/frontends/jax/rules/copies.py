"""Along which dims all slices of the results of an equation are equal: what is filled with copies.

A part of the examples has the same slices, so microbatches may make their own. Of loops and
branches, what their bodies make is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from autoshard import Operator, Rule

from frontends.jax.base._compat import ClosedJaxpr, JaxprEqn, Literal, Var, aval
from frontends.step.sorted_rows import copies

Equal = frozenset[int]
"""Dims along which all slices are equal."""

MAKERS = ("broadcast_in_dim", "iota", "scan", "while", "cond")
"""Primitives that make copies from operands without examples."""


def equal_dims(
    equation: JaxprEqn, operands: Sequence[Equal], rule_of: Callable[[JaxprEqn], Rule]
) -> tuple[Equal, ...]:
    """For each result: the dims along which all slices are equal, as far as it is known.

    Args:
        equation: The equation.
        operands: The same of its operands.
        rule_of: The rule of an equation that is no control flow.
    """
    rank = len(aval(equation.outvars[0]).shape) if equation.outvars else 0
    params, kind = equation.params, equation.primitive.name
    if kind == "iota":
        return (frozenset(range(rank)) - {params["dimension"]},)
    if kind == "broadcast_in_dim":
        sizes = aval(equation.invars[0]).shape
        dims = map(int, params["broadcast_dimensions"])
        placed = [*zip(dims, sizes, strict=True)]
        kept = {d for i, (d, n) in enumerate(placed) if n != 1 and i not in operands[0]}
        return (frozenset(range(rank)) - kept,)
    if kind == "cond":
        each = [_of_body(body, operands[1:], rule_of) for body in params["branches"]]
        return tuple(frozenset.intersection(*of) for of in zip(*each, strict=True))
    if kind == "while":
        first = params["cond_nconsts"]
        n = first + params["body_nconsts"]
        body = params["body_jaxpr"]
        return _of_loop(body, operands[first:n], operands[n:], (), rule_of)
    if kind == "scan":
        first = params["num_consts"]
        n = first + params["num_carry"]
        sequences = tuple(_shifted(of, -1) for of in operands[n:])
        return _of_loop(params["jaxpr"], operands[:first], operands[first:n], sequences, rule_of)
    names = [str(i) for i in range(len(operands))]
    results = tuple(f"result.{i}" for i in range(len(equation.outvars)))
    read = tuple(n for n, v in zip(names, equation.invars, strict=True) if isinstance(v, Var))
    operator = Operator("", kind, read, results, rule_of(equation))
    found = copies(operator, dict(zip(names, operands, strict=True)))
    return tuple(found.get(name, frozenset()) for name in results)


def _of_loop(
    body: ClosedJaxpr,
    constants: Sequence[Equal],
    carry: Sequence[Equal],
    sequences: Sequence[Equal],
    rule_of: Callable[[JaxprEqn], Rule],
) -> tuple[Equal, ...]:
    """Of the carry what every iteration leaves equal; of sequences what is so in each."""
    while True:
        found = _of_body(body, (*constants, *carry, *sequences), rule_of)
        left = tuple(a & b for a, b in zip(carry, found[: len(carry)], strict=True))
        if left == tuple(carry):
            return (*left, *(_shifted(of, 1) for of in found[len(carry) :]))
        carry = left


def _of_body(
    body: ClosedJaxpr, inputs: Sequence[Equal], rule_of: Callable[[JaxprEqn], Rule]
) -> tuple[Equal, ...]:
    known = dict(zip(body.jaxpr.invars, inputs, strict=True))

    def read(atoms: Sequence[Var | Literal]) -> Iterator[Equal]:
        for v in atoms:
            every = frozenset(range(len(aval(v).shape)))
            yield every if isinstance(v, Literal) else known.get(v, frozenset())

    for equation in body.jaxpr.eqns:
        made = equal_dims(equation, tuple(read(equation.invars)), rule_of)
        known.update(zip(equation.outvars, made, strict=True))
    return tuple(read(body.jaxpr.outvars))


def _shifted(dims: Equal, by: int) -> Equal:
    return frozenset(d + by for d in dims if d + by >= 0)
