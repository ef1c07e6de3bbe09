"""`Step`: one collective of a resharding, and the bytes it moves; `ReshardPlan`: all of them."""

from dataclasses import dataclass

from shardspec.base.axis import Axis, Split, index
from shardspec.base.partial import Reduction
from shardspec.layout.layout import Layout
from shardspec.refine.lower_bound import (
    held_elements,
    kept_elements,
    lower_bound_elements,
    missing_elements,
)
from shardspec.refine.refine import refine
from shardspec.refine.transpose import LocalTranspose, pack, unpack
from shardspec.resharding.construct import StepKind
from shardspec.resharding.transfer import transfers


@dataclass(frozen=True, slots=True)
class Step:
    """One collective, run in every group of devices along `axes`, from layout `src` to `dst`.

    - `all_gather`: `axes` no longer shard; each device gets what the whole group holds.
    - `slice`: `axes` shard from now on; each device keeps its part of what it holds.
    - `all_to_all`: `axes` shard something else; each device cuts what it holds into equal parts,
      keeps one and sends one to each other device of its group.
    - `collective_permute`: each device sends its shard to one device and gets the shard of one.
    - `exchange`: each device sends to each other one what that one needs and it has (MPI's
      Alltoallv).
    - `reduce_scatter`: partial results over `axes` are combined, and `axes` shard the result.
    - `all_reduce`: partial results over `axes` are combined, and all devices get the result.
    - `fill`: replicas or shards become partial results over `axes`, with neutral elements.

    Slice and fill are local. Groups are `src.mesh.groups(axes)`: the first axis is major.

    In the simple case, `axes` are the minor-most of one dim before or afterwards, keep their order,
    and cut one block of each device without padding; `dim` is this dim. Then a gather, slice or
    reduce-scatter cuts or joins the local array along `dim` in group order, and an all-to-all joins
    along `dim` and cuts along `to_dim`. In all other cases `dim` is None, and the parts are blocks
    of the local array: `pack` and `unpack` say which, and `transfers` who sends what to whom.
    """

    kind: StepKind
    """The collective."""
    axes: tuple[Axis, ...]
    """Mesh axes, or parts of them, that the collective runs over, major to minor."""
    dim: int | None
    """The dim that is gathered, sliced or scattered; of an all-to-all, the one that loses axes."""
    to_dim: int | None
    """The dim that gains the axes of an all-to-all."""
    reduction: Reduction | None
    """How partial results combine, for the kinds that reduce or fill."""
    src: Layout
    """Layout before the step."""
    dst: Layout
    """Layout after the step."""

    @property
    def group_size(self) -> int:
        """Number of devices in a group."""
        return self.src.mesh.axis_size(self.axes)

    @property
    def mesh_axes(self) -> tuple[int, ...]:
        """Mesh axes that the collective runs over, in whole or in part."""
        return tuple(dict.fromkeys(map(index, self.axes)))

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each group."""
        return self.src.mesh.groups(self.axes)

    @property
    def is_local(self) -> bool:
        """Whether no device sends anything."""
        return self.kind in ("slice", "fill")

    def pack(self, device_id: int) -> LocalTranspose | None:
        """The transpose that turns a device's array into the parts for its group.

        A slice then keeps the part at the device's index in the group, a reduce-scatter combines
        the parts at this index, and an all-to-all sends to each device the part at that device's
        index.

        Returns:
            A transpose to shape `(n, ...)`, parts in group order. None for other kinds, and if the
            parts are not equal blocks.

        Examples:
            >>> from shardspec import Mesh, Spec, reshard
            >>> mesh = Mesh((2,), ("x",))
            >>> rows, columns = (Layout((8, 6), mesh, Spec.parse(s)) for s in ("S0R", "RS0"))
            >>> (step,) = reshard(rows, columns).steps
            >>> step.pack(0)
            LocalTranspose(view=(1, 4, 2, 3), order=(2, 0, 1, 3), shape=(2, 4, 3))
        """
        if self.kind not in ("slice", "all_to_all", "reduce_scatter"):
            return None
        return pack(self.src, self.dst, self.axes, device_id)

    def unpack(self, device_id: int) -> LocalTranspose | None:
        """The transpose that turns the parts of a device's group into its array.

        For an all-gather, whose parts are the shards of the group, and for an all-to-all.

        Returns:
            A transpose from shape `(n, ...)`, parts in group order. None for other kinds, and if
            the parts are not equal blocks.
        """
        if self.kind not in ("all_gather", "all_to_all"):
            return None
        return unpack(self.src, self.dst, self.axes, device_id)

    def total_bytes(self, itemsize: int) -> int:
        """Bytes that all devices together receive, and also send; 0 for a local step.

        With `n` devices in a group, a ring brings each device everything that it lacks once in an
        all-gather and an all-to-all; `n - 1` times its part of the result in a reduce-scatter; and
        twice that in an all-reduce.

        Args:
            itemsize: Bytes per element.

        Reference:
            AutoDDL, Table 2, with `p` devices and `n` bytes (of the output, for an all-gather).
        """
        n = self.group_size
        match self.kind:
            case "slice" | "fill":
                moved = 0
            case "all_reduce":
                moved = held_elements(self.src) // n * 2 * (n - 1)
            case "reduce_scatter":
                moved = held_elements(self.dst) * (n - 1)
            case _:
                moved = held_elements(self.dst) - kept_elements(self.src, self.dst)
        return moved * itemsize

    def received_bytes(self, itemsize: int) -> int:
        """Bytes received by the device that receives most.

        Args:
            itemsize: Bytes per element.
        """
        n = self.group_size
        match self.kind:
            case "slice" | "fill":
                received = 0
            case "all_reduce":
                held = self.src.local_bytes(1)
                received = 2 * (held - held // n)
            case "reduce_scatter":
                received = (n - 1) * self.dst.local_bytes(1)
            case _:
                received = missing_elements(self.src, self.dst)
        return received * itemsize

    def sent_bytes(self, itemsize: int) -> int:
        """Bytes sent by the device that sends most.

        This equals `received_bytes` in a ring, in a permutation, and if all shards keep their size.
        """
        keeps = self.src.local_bytes(1) == self.dst.local_bytes(1)
        if self.kind in ("exchange", "all_to_all") and not (keeps and refine(self.src, self.dst)):
            sent: dict[int, int] = {}
            for t in transfers(self.src, self.dst, self.axes):
                if t.sender != t.receiver:
                    sent[t.sender] = sent.get(t.sender, 0) + t.elements
            return max(sent.values(), default=0) * itemsize
        return self.received_bytes(itemsize)

    def __str__(self) -> str:
        where = "" if self.dim is None else f" dim {self.dim}"
        target = "" if self.to_dim is None else f" to dim {self.to_dim}"
        reduction = "" if self.reduction is None else f" {self.reduction}"
        axes = ",".join(map(str, self.axes))
        return (
            f"{self.kind}{reduction}{where}{target} over axis {axes}: "
            f"{self.src.spec} -> {self.dst.spec}"
        )


@dataclass(frozen=True, slots=True)
class ReshardPlan:
    """The steps from one layout to another of the same tensor on the same mesh."""

    src: Layout
    """Layout before the first step."""
    dst: Layout
    """Layout after the last step."""
    steps: tuple[Step, ...]
    """Steps in order of execution; none if every device already holds what it should."""

    @property
    def n_collectives(self) -> int:
        """Number of steps that are not local."""
        return sum(not step.is_local for step in self.steps)

    def total_bytes(self, itemsize: int) -> int:
        """Bytes that all devices receive in all steps together."""
        return sum(step.total_bytes(itemsize) for step in self.steps)

    def lower_bound_bytes(self, itemsize: int) -> int:
        """The least number of bytes that all devices together receive, by whatever collectives."""
        return lower_bound_elements(self.src, self.dst) * itemsize

    @property
    def gap(self) -> float:
        """By what fraction `total_bytes` exceeds the lower bound; 0.0 if no plan can move fewer."""
        total, bound = self.total_bytes(1), self.lower_bound_bytes(1)
        if total == bound:
            return 0.0
        return total / bound - 1 if bound else float("inf")

    def received_bytes(self, itemsize: int) -> int:
        """Upper bound on the bytes that one device receives in all steps together."""
        return sum(step.received_bytes(itemsize) for step in self.steps)

    def sent_bytes(self, itemsize: int) -> int:
        """Upper bound on the bytes that one device sends in all steps together."""
        return sum(step.sent_bytes(itemsize) for step in self.steps)

    def peak_bytes(self, itemsize: int) -> int:
        """Most bytes of this tensor on one device at a time: input and output of the same step."""
        return max(
            (s.src.local_bytes(itemsize) + s.dst.local_bytes(itemsize) for s in self.steps),
            default=self.src.local_bytes(itemsize),
        )

    def largest_bytes(self, itemsize: int) -> int:
        """Bytes of the largest shard that a device has before, between or after the steps."""
        layouts = [self.src, self.dst, *(step.dst for step in self.steps)]
        return max(layout.local_bytes(itemsize) for layout in layouts)

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps)) or f"nothing to do: {self.src.spec}"


def step(
    kind: StepKind,
    axes: tuple[Axis, ...],
    reduction: Reduction | None,
    src: Layout,
    dst: Layout,
) -> Step:
    """The step between two layouts; sets `dim` and `to_dim` in the simple case (see `Step`)."""
    before, after = src.spec.dims, dst.spec.dims
    changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]

    def simple(dim: int, few: Layout, many: Layout) -> bool:
        """Whether `axes` cut one block of each device along `dim`, into parts without padding."""
        entries = few.spec.dims[dim]
        return (
            src.mesh.joined((*entries, *axes)) == many.spec.dims[dim]
            and not any(isinstance(entry, Split) for entry in entries)
            and "padded" not in (few.rules[dim], many.rules[dim])
        )

    dim = to_dim = None
    if kind == "all_gather" and len(changed) == 1:
        (i,) = changed
        dim = i if simple(i, dst, src) else None
    elif kind in ("slice", "reduce_scatter") and len(changed) == 1:
        (i,) = changed
        dim = i if simple(i, src, dst) else None
    elif kind == "all_to_all" and len(changed) == 2:
        for i, j in (changed, reversed(changed)):
            if simple(i, dst, src) and simple(j, src, dst):
                dim, to_dim = i, j
    return Step(kind, axes, dim, to_dim, reduction, src, dst)
