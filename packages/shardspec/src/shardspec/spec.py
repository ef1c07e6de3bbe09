"""`Spec`: how a tensor's dims map to mesh axes, and which axes hold partial results."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Self, get_args

from .errors import SpecError
from .mesh import Mesh

Reduction = Literal["sum", "max", "min"]
"""How partial results combine."""

_AXIS = r"(?:[0-9]|\([0-9]+\))"
_SPEC = re.compile(rf"(\(\)|(?:R|S{_AXIS}+)+)((?:\+P(?:sum|max|min)?{_AXIS})*)")
_DIM = re.compile(rf"R|S(?:{_AXIS})+")
_PARTIAL = re.compile(rf"\+P(sum|max|min)?({_AXIS})")


@dataclass(frozen=True, slots=True, order=True)
class Partial:
    """Devices along `axis` hold partial results that combine by `kind` (P of AutoDDL 4.1)."""

    axis: int
    """Mesh axis index."""
    kind: Reduction = "sum"
    """How the partial results combine."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Reduction):
            raise SpecError(
                f"partial results combine by one of {get_args(Reduction)}; got kind={self.kind!r}"
            )


@dataclass(frozen=True, slots=True)
class Spec:
    """How one tensor lies on a mesh, in terms of axis indices (so it is independent of names).

    Prints in Alpa's notation (4.1): a letter for each dim, `R` replicated or `S` with the axes that
    shard it, major to minor; then the partial axes, after AutoDDL's P. On a 2×3 mesh, `S01R` cuts
    dim 0 into 6 parts and device (x, y) holds part `3 * x + y`; with `S10R` it holds `2 * y + x`.

    Partial results of different kinds do not commute: they combine from the last axis to the first,
    so `R+P0+Pmax1` is the sum along axis 0 of the maxima along axis 1.

    Raises:
        SpecError: a negative axis, or one used twice.

    Examples:
        >>> Spec(((0,), ()))
        Spec.parse('S0R')
        >>> str(Spec(((1, 0), ()), (Partial(2), Partial(3, "max"))))
        'S10R+P2+Pmax3'
        >>> str(Spec.replicated(0))
        '()'
    """

    dims: tuple[tuple[int, ...], ...]
    """For each tensor dim the mesh axes that shard it, major to minor; `()` is replicated."""
    partial: tuple[Partial, ...] = ()
    """The axes that hold partial results, kept sorted by axis."""

    def __post_init__(self) -> None:
        dims = tuple(map(tuple, self.dims))
        used = [axis for axes in dims for axis in axes]
        if self.partial:
            object.__setattr__(self, "partial", tuple(sorted(self.partial)))
            used += [partial.axis for partial in self.partial]
        object.__setattr__(self, "dims", dims)
        if len(set(used)) != len(used) or (used and min(used) < 0):
            raise SpecError(
                "a spec uses each axis at most once, and axes are indices >= 0; "
                f"got dims={dims} and partial={self.partial}"
            )

    @classmethod
    def replicated(cls, ndim: int) -> Self:
        """The spec under which every device holds the whole of a tensor with `ndim` dims."""
        return cls(((),) * ndim)

    @classmethod
    def from_names(
        cls,
        mesh: Mesh,
        dims: Iterable[str | tuple[str, ...] | None],
        partial: Mapping[str, Reduction] | None = None,
    ) -> Self:
        """The spec written with a mesh's axis names, as in JAX's `PartitionSpec`.

        Args:
            mesh: Only its names matter.
            dims: For each dim an axis, several (major to minor), or None.
            partial: Kind of the partial results by axis.

        Raises:
            UnknownAxisError: the mesh has no axis of this name.
            SpecError: an axis used twice.

        Examples:
            >>> Spec.from_names(Mesh((2, 2), ("x", "y")), (None, "x"), {"y": "sum"})
            Spec.parse('RS0+P1')
        """
        names = [() if d is None else (d,) if isinstance(d, str) else d for d in dims]
        return cls(
            tuple(tuple(mesh.axis(name) for name in of_dim) for of_dim in names),
            tuple(Partial(mesh.axis(name), kind) for name, kind in (partial or {}).items()),
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """The spec that prints as `text`; `parse(str(spec)) == spec` for all specs.

        Raises:
            SpecError: `text` is not in the notation, or uses an axis twice.
        """
        match = _SPEC.fullmatch(text)
        if match is None:
            raise SpecError(
                "a spec is a letter for each dim, R or S with its axes, then +P, +Pmax or +Pmin "
                f"with an axis, as in 'S01R+P2', or '()' for a scalar; got {text!r}"
            )
        return cls(
            tuple(_parse_axes(part) for part in _DIM.findall(match[1])),
            tuple(
                Partial(_parse_axes(axis)[0], kind or "sum")
                for kind, axis in _PARTIAL.findall(match[2])
            ),
        )

    @property
    def ndim(self) -> int:
        """Number of tensor dims."""
        return len(self.dims)

    @property
    def axes(self) -> tuple[int, ...]:
        """All axes that shard a dim, in the order of the dims (partial ones are not among them)."""
        return tuple(axis for axes in self.dims for axis in axes)

    @property
    def is_partial(self) -> bool:
        """Whether any axis holds partial results."""
        return bool(self.partial)

    def sharding_of(self, dim: int) -> tuple[int, ...]:
        """The axes that shard `dim`, major to minor."""
        return self.dims[dim]

    def __str__(self) -> str:
        dims = "".join("S" + _axes_text(axes) if axes else "R" for axes in self.dims)
        partial = "".join(
            f"+P{'' if p.kind == 'sum' else p.kind}{_axes_text((p.axis,))}" for p in self.partial
        )
        return (dims or "()") + partial

    def __repr__(self) -> str:
        return f"Spec.parse({str(self)!r})"


def _axes_text(axes: tuple[int, ...]) -> str:
    return "".join(map(str if max(axes) < 10 else "({})".format, axes))


def _parse_axes(text: str) -> tuple[int, ...]:
    return tuple(int(axis.strip("()")) for axis in re.findall(_AXIS, text))
