"""`Spec`: which mesh axes shard each dim of a tensor, and which axes hold partial results."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self, cast

from shardspec.base.axis import Axis, Entry, Split, SubAxis, index, merged, overlap, pre_size
from shardspec.base.integers import LIMIT, items, natural, shown
from shardspec.base.partial import Partial, Reduction
from shardspec.errors import SpecError
from shardspec.layout.mesh import Mesh

_AXIS = r"(?:[0-9]|\([0-9]{1,19}(?::\([0-9]{1,19}\)[0-9]{1,19})?\))"
_ENTRY = rf"(?:{_AXIS}|\[[0-9]{{1,19}}\])"
_KIND = r"sum|max|min|product|avg"
_SPEC = re.compile(rf"(\(\)|(?:R|S{_ENTRY}+)+)((?:\+P(?:{_KIND})?{_AXIS})*)", re.ASCII)
_DIM = re.compile(rf"R|S({_ENTRY}+)", re.ASCII)
_PARTIAL = re.compile(rf"\+P({_KIND})?({_AXIS})", re.ASCII)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")


@dataclass(frozen=True, slots=True)
class Spec:
    """Which mesh axes shard each dim of one tensor; axes are indices, so names do not matter.

    Prints in Alpa's notation (4.1): a letter for each dim, `R` (replicated) or `S` with the axes
    that shard it, major to minor; then the partial axes, each after a P as in AutoDDL. On a 2×3
    mesh, `S01R` cuts dim 0 into 6 parts and device (x, y) holds part `3 * x + y`; with `S10R` it
    holds `2 * y + x`. Two things go beyond Alpa: `S(0:(1)2)` uses the major half of axis 0
    (Shardy's `"x":(1)2`), and `S[2]0` cuts the dim in 2 before axis 0 cuts each half: a strided
    shard.

    A spec is canonical: adjacent parts of an axis are joined, and splits that move nothing are
    dropped.

    Partial results of different kinds do not commute. They combine from the last axis to the first,
    so `R+P0+Pmax1` is the sum along axis 0 of the maxima along axis 1.

    Raises:
        SpecError: an axis that is not an index >= 0, or one used twice, in whole or in part.

    Examples:
        >>> Spec(((0,), ()))
        Spec.parse('S0R')
        >>> str(Spec(((1, 0), ()), (Partial(2), Partial(3, "max"))))
        'S10R+P2+Pmax3'
        >>> str(Spec(((Split(2), 0), (SubAxis(1, 2, 4),))))
        'S[2]0S(1:(2)4)'
        >>> str(Spec.replicated(0))
        '()'
    """

    dims: tuple[tuple[Entry, ...], ...]
    """For each dim of the tensor, what shards it, major to minor; `()` if it is replicated."""
    partial: tuple[Partial, ...] = ()
    """The axes that hold partial results, kept sorted by axis."""

    def __post_init__(self) -> None:
        try:
            dims = tuple(map(tuple, self.dims))
        except TypeError:
            raise SpecError(
                f"a spec has a tuple of axes for each dim; got dims={shown(self.dims)}; "
                "Spec.parse reads text, Spec.from_names names"
            ) from None
        plain = not any(type(entry) is not int for entries in dims for entry in entries)
        if not plain:
            dims = tuple(merged(map(_entry, entries)) for entries in dims)
        used = [e for entries in dims for e in entries if not isinstance(e, Split)]
        if self.partial or type(self.partial) is not tuple:
            object.__setattr__(self, "partial", _canonical_partial(self.partial))
            used += [partial.axis for partial in self.partial]
            plain = False
        indices = cast(list[int], used) if plain else list(map(index, used))
        if overlap(used) or (indices and not 0 <= min(indices) <= max(indices) <= LIMIT):
            raise SpecError(
                "a spec uses each axis at most once, and axes are indices >= 0; "
                f"got dims={shown(self.dims)} and partial={shown(self.partial)}"
            )
        object.__setattr__(self, "dims", dims)

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
        """The spec from the names of a mesh's axes, as in JAX's `PartitionSpec`.

        Args:
            mesh: Only its axis names matter.
            dims: For each dim an axis name, several (major to minor), or None (replicated).
            partial: Names of the axes that hold partial results, with the kind of each.

        Raises:
            UnknownAxisError: the mesh has no axis of this name.
            SpecError: an axis used twice.

        Examples:
            >>> Spec.from_names(Mesh((2, 2), ("x", "y")), (None, "x"), {"y": "sum"})
            Spec.parse('RS0+P1')
        """
        axes_of_dims = []
        for dim in dims:
            names = () if dim is None else (dim,) if isinstance(dim, str) else items(dim)
            if names is None:
                raise SpecError(
                    f"a dim has the name of an axis, a tuple of names or None; got {shown(dim)}"
                )
            axes_of_dims.append(tuple(map(mesh.axis, names)))
        return cls(
            tuple(axes_of_dims),
            tuple(Partial(mesh.axis(name), kind) for name, kind in (partial or {}).items()),
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """The spec that prints as `text`: `parse(str(spec)) == spec` for all specs.

        Axes may also be written as superscripts, as papers print them.

        Raises:
            SpecError: `text` is not in the notation, or uses an axis twice.
        """
        match = _SPEC.fullmatch(text.translate(_SUPERSCRIPTS)) if isinstance(text, str) else None
        if match is None:
            raise SpecError(
                "a spec is a letter for each dim, R or S with its axes, then +P, +Pmax, ... with "
                f"an axis, as in 'S01R+P2', or '()' for a scalar; got {shown(text)}"
            )
        return cls(
            tuple(_parse_entries(entries) for entries in _DIM.findall(match[1])),
            tuple(
                Partial(_parse_axis(axis), kind or "sum")
                for kind, axis in _PARTIAL.findall(match[2])
            ),
        )

    @property
    def ndim(self) -> int:
        """Number of tensor dims."""
        return len(self.dims)

    @property
    def axes(self) -> tuple[int, ...]:
        """Mesh axes that shard a dim, in whole or in part, in the order of the dims."""
        return tuple(dict.fromkeys(map(index, sharding_axes(self))))

    @property
    def partial_axes(self) -> tuple[int, ...]:
        """Mesh axes that hold partial results, in whole or in part."""
        return tuple(dict.fromkeys(index(partial.axis) for partial in self.partial))

    @property
    def is_partial(self) -> bool:
        """Whether any axis holds partial results."""
        return bool(self.partial)

    @property
    def is_plain(self) -> bool:
        """Whether it has neither sub-axes nor splits, so that Alpa's notation can express it."""
        used = [e for entries in self.dims for e in entries] + [p.axis for p in self.partial]
        return all(isinstance(entry, int) for entry in used)

    @property
    def plain_dims(self) -> tuple[tuple[int, ...], ...]:
        """`dims` of a spec that uses whole axes only.

        Raises:
            SpecError: the spec has sub-axes or splits.
        """
        if not self.is_plain:
            raise SpecError(
                f"only specs of whole axes, without splits, can be used here; got {self}; "
                "write the mesh with more axes (Mesh.split) to use parts of one"
            )
        return tuple(tuple(e for e in entries if isinstance(e, int)) for entries in self.dims)

    def sharding_of(self, dim: int) -> tuple[Axis, ...]:
        """The axes that shard `dim`, major to minor, without the splits between them."""
        return tuple(entry for entry in self.dims[dim] if not isinstance(entry, Split))

    def __str__(self) -> str:
        dims = "".join("S" + _entries_text(entries) if entries else "R" for entries in self.dims)
        partial = "".join(
            f"+P{'' if p.kind == 'sum' else p.kind}{_entries_text((p.axis,))}" for p in self.partial
        )
        return (dims or "()") + partial

    def __repr__(self) -> str:
        return f"Spec.parse({str(self)!r})"


def sharding_axes(spec: Spec) -> list[Axis]:
    """All axes and parts of axes that shard a dim, dim by dim, each major to minor."""
    return [axis for dim in range(spec.ndim) for axis in spec.sharding_of(dim)]


def _canonical_partial(partial: Iterable[Partial]) -> tuple[Partial, ...]:
    """`partial` sorted by axis, with adjacent parts of an axis joined if they are of one kind."""
    partials = items(partial)
    if partials is None or not all(isinstance(p, Partial) for p in partials):
        raise SpecError(
            f"partial results are a tuple of Partial(axis, kind); got partial={shown(partial)}"
        )
    canonical: list[Partial] = []
    for p in sorted(partials, key=_partial_order):
        if canonical and canonical[-1].kind == p.kind:
            joined = merged((canonical[-1].axis, p.axis))
            if len(joined) == 1 and not isinstance(joined[0], Split):
                canonical[-1] = Partial(joined[0], p.kind)
                continue
        canonical.append(p)
    return tuple(canonical)


def _entry(entry: object) -> Entry:
    """`entry`, or an axis index that no spec may use (-1) if it is not an entry."""
    return entry if isinstance(entry, SubAxis | Split) else natural(entry)


def _partial_order(partial: Partial) -> tuple[int, int, str]:
    return (index(partial.axis), pre_size(partial.axis), partial.kind)


def _entries_text(entries: tuple[Entry, ...]) -> str:
    short = all(isinstance(e, Split) or (isinstance(e, int) and e < 10) for e in entries)
    return "".join(str(e) if short or isinstance(e, Split) else f"({e})" for e in entries)


def _parse_entries(text: str) -> tuple[Entry, ...]:
    return tuple(
        Split(int(entry[1:-1])) if entry[0] == "[" else _parse_axis(entry)
        for entry in re.findall(_ENTRY, text)
    )


def _parse_axis(text: str) -> Axis:
    numbers = [int(number) for number in re.findall("[0-9]+", text)]
    return numbers[0] if len(numbers) == 1 else SubAxis(*numbers)
