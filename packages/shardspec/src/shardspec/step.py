"""`Step`: one collective of a resharding, and the bytes it moves."""

from dataclasses import dataclass
from typing import Literal

from .layout import Layout
from .partial import Reduction

StepKind = Literal["all_gather", "all_to_all", "reduce_scatter", "all_reduce", "slice"]
"""What a step does; a slice is local."""


@dataclass(frozen=True, slots=True)
class Step:
    """One collective, run in every group of devices along `axes`, from layout `src` to `dst`.

    What happens to the spec, where `axes` are always the minor-most of a dim and keep their order:

    - `all_gather` takes `axes` off the end of `dim`;
    - `slice` appends them to `dim`: each device keeps its part of what it holds;
    - `all_to_all` takes them off the end of `dim` and appends them to `to_dim`;
    - `reduce_scatter` takes the partial sums over `axes` and appends `axes` to `dim`;
    - `all_reduce` takes the partial results over `axes`.

    Groups are `src.mesh.groups(axes)`: the first axis is major, and member `i` owns part `i`.
    """

    kind: StepKind
    """The collective."""
    axes: tuple[int, ...]
    """Mesh axes it runs over, major to minor."""
    dim: int | None
    """The dim gathered, sliced or scattered into; of an all-to-all the one that loses the axes."""
    to_dim: int | None
    """The dim that gains the axes of an all-to-all."""
    reduction: Reduction | None
    """How partial results combine, for the two reducing kinds."""
    src: Layout
    """Before."""
    dst: Layout
    """After."""

    @property
    def group_size(self) -> int:
        """Devices that take part in one group."""
        return self.src.mesh.axis_size(self.axes)

    def received_bytes(self, itemsize: int) -> int:
        """Bytes that one device receives, 0 for a slice.

        With `n` devices in a group and `b` bytes before the step, a ring delivers `(n - 1) * b` in
        an all-gather, `(n - 1) / n * b` in an all-to-all and a reduce-scatter, and twice that in an
        all-reduce (the most that one device receives, where `n` does not divide the shard).

        Args:
            itemsize: Bytes an element.

        Reference:
            AutoDDL, Table 2 (there `p` devices, and `n` bytes: of the output for an all-gather).
        """
        n = self.group_size
        elements = self.src.local_bytes(1)
        match self.kind:
            case "slice":
                received = 0
            case "all_gather":
                received = (n - 1) * elements
            case "all_to_all" | "reduce_scatter":
                received = elements - elements // n
            case "all_reduce":
                received = 2 * (elements - elements // n)
        return received * itemsize

    def sent_bytes(self, itemsize: int) -> int:
        """Bytes that one device sends: in a ring, and in an all-to-all, as many as it receives."""
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
    """Before the first step."""
    dst: Layout
    """After the last one."""
    steps: tuple[Step, ...]
    """In order of execution; none if nothing changes."""

    def received_bytes(self, itemsize: int) -> int:
        """Bytes that one device receives in all steps together."""
        return sum(step.received_bytes(itemsize) for step in self.steps)

    def peak_bytes(self, itemsize: int) -> int:
        """Most bytes of this tensor that one device holds at a time: input and output of a step."""
        return max(
            (s.src.local_bytes(itemsize) + s.dst.local_bytes(itemsize) for s in self.steps),
            default=self.src.local_bytes(itemsize),
        )

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps)) or f"nothing to do: {self.src.spec}"
