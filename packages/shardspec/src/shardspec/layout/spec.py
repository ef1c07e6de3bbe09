"""`Spec`: how a tensor's dims map to mesh axes, and which axes hold partial results."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self, cast

from shardspec.base.axis import Axis, Entry, Split, SubAxis, index, merged, overlap
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
    """How one tensor lies on a mesh, in terms of axis indices (so it is independent of names).

    Prints in Alpa's notation (4.1): a letter for each dim, `R` replicated or `S` with the axes that
    shard it, major to minor; then the partial axes, after AutoDDL's P. On a 2×3 mesh, `S01R` cuts
    dim 0 into 6 parts and device (x, y) holds part `3 * x + y`; with `S10R` it holds `2 * y + x`.
    Past Alpa, `S(0:(1)2)` uses the major half of axis 0 (Shardy's `"x":(1)2`), and `S[2]0` cuts the
    dim in 2 before axis 0 cuts each half: a strided shard.

    A spec is canonical: adjacent parts of an axis are joined, splits that move nothing dropped.

    Partial results of different kinds do not commute: they combine from the last axis to the first,
    so `R+P0+Pmax1` is the sum along axis 0 of the maxima along axis 1.

    Raises:
        SpecError: an axis that is no index >= 0, or one used twice, in whole or in part.

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
    """For each tensor dim what shards it, major to minor; `()` is replicated."""
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
        given = self.dims
        object.__setattr__(self, "dims", dims)
        indices = cast(list[int], used) if plain else list(map(index, used))
        if overlap(used) or (indices and not 0 <= min(indices) <= max(indices) <= LIMIT):
            raise SpecError(
                "a spec uses each axis at most once, and axes are indices >= 0; "
                f"got dims={shown(given)} and partial={shown(self.partial)}"
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
        found = []
        for dim in dims:
            names = () if dim is None else (dim,) if isinstance(dim, str) else items(dim)
            if names is None:
                raise SpecError(
                    f"a dim has the name of an axis, a tuple of names or None; got {shown(dim)}"
                )
            found.append(tuple(map(mesh.axis, names)))
        return cls(
            tuple(found),
            tuple(Partial(mesh.axis(name), kind) for name, kind in (partial or {}).items()),
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """The spec that prints as `text`; `parse(str(spec)) == spec` for all specs.

        Axes may also be superscripts, as the papers print them.

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
        """Axes that shard a dim, whole or in part, in the order of the dims."""
        found = [index(axis) for axes in map(self.sharding_of, range(self.ndim)) for axis in axes]
        return tuple(dict.fromkeys(found))

    @property
    def partial_axes(self) -> tuple[int, ...]:
        """Axes that hold partial results, whole or in part."""
        return tuple(dict.fromkeys(index(partial.axis) for partial in self.partial))

    @property
    def is_partial(self) -> bool:
        """Whether any axis holds partial results."""
        return bool(self.partial)

    @property
    def is_plain(self) -> bool:
        """Whether only whole axes are used, and no splits: what Alpa's notation can say."""
        used = [e for entries in self.dims for e in entries] + [p.axis for p in self.partial]
        return all(isinstance(entry, int) for entry in used)

    @property
    def plain_dims(self) -> tuple[tuple[int, ...], ...]:
        """`dims` of a spec that uses whole axes only.

        Raises:
            SpecError: it has sub-axes or splits.
        """
        found = tuple(tuple(e for e in entries if isinstance(e, int)) for entries in self.dims)
        if not self.is_plain:
            raise SpecError(
                f"only specs of whole axes, without splits, can be used here; got {self}; "
                "write the mesh with more axes (Mesh.split) to use parts of one"
            )
        return found

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


def _canonical_partial(partial: Iterable[Partial]) -> tuple[Partial, ...]:
    """Sorted by axis, adjacent parts of an axis that combine alike joined."""
    given = items(partial)
    if given is None or not all(isinstance(p, Partial) for p in given):
        raise SpecError(
            f"partial results are a tuple of Partial(axis, kind); got partial={shown(partial)}"
        )
    found: list[Partial] = []
    for p in sorted(given, key=_partial_order):
        if found and found[-1].kind == p.kind:
            joined = merged((found[-1].axis, p.axis))
            if len(joined) == 1 and not isinstance(joined[0], Split):
                found[-1] = Partial(joined[0], p.kind)
                continue
        found.append(p)
    return tuple(found)


def _entry(given: object) -> Entry:
    """An entry of a dim; what is none becomes an axis that no spec may use."""
    return given if isinstance(given, SubAxis | Split) else natural(given)


def _partial_order(partial: Partial) -> tuple[int, int, str]:
    axis = partial.axis
    return (index(axis), axis.pre if isinstance(axis, SubAxis) else 0, partial.kind)


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
