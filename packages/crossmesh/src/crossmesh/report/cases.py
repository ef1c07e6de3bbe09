"""The nine transfers of Table 2 of Zhuang et al., MLSys 2023."""

from dataclasses import dataclass

from shardspec import Layout, Mesh, Spec

SHAPE = (1024, 1024, 512)
"""Shape of the tensor (section 5.1.2). The paper pads it in case 6, where 1024 is cut in three."""


@dataclass(frozen=True, slots=True)
class PaperCase:
    """A row of the table."""

    number: int
    """Number of the case in the table, from 1."""
    src: Layout
    """The source, on devices from 0 on."""
    dst: Layout
    """The destination, on the devices after those of the source."""

    @property
    def hosts(self) -> dict[int, int]:
        """The host of each device; each row of a mesh is a host."""
        return rows_as_hosts(self.src.mesh, self.dst.mesh)


def cases(shape: tuple[int, int, int] = SHAPE) -> tuple[PaperCase, ...]:
    """All rows of the table.

    The table prints the destination of case 5 as S_0RR, which is not a spec in the paper's
    notation; we read it as S^0RR.

    Args:
        shape: Shape of the tensor, to make it smaller. The first two dims may or may not be
            divisible by 8.

    Examples:
        >>> case = cases()[6]
        >>> str(case.src.spec), case.src.mesh.shape, str(case.dst.spec), case.dst.mesh.shape
        ('S1RR', (1, 4), 'RRR', (2, 4))
        >>> case.hosts
        {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 1, 7: 1, 8: 2, 9: 2, 10: 2, 11: 2}
    """
    rows = []
    for number, (src, src_mesh, dst, dst_mesh) in enumerate(_TABLE, 1):
        mesh = Mesh(src_mesh, ("x", "y"))
        n_devices = len(mesh.device_ids)
        other = Mesh(dst_mesh, ("x", "y"))
        after = tuple(device + n_devices for device in other.device_ids)
        rows.append(
            PaperCase(
                number,
                Layout(shape, mesh, Spec.parse(src)),
                Layout(shape, Mesh(dst_mesh, ("x", "y"), after), Spec.parse(dst)),
            )
        )
    return tuple(rows)


def rows_as_hosts(*meshes: Mesh) -> dict[int, int]:
    """The host of each device, if each row of each mesh is a host; hosts are numbered from 0.

    Section 5 of the paper writes a mesh as the number of hosts times the devices of each.

    Args:
        meshes: Meshes without common devices. Rows run along the last axis.

    Examples:
        >>> rows_as_hosts(Mesh((2, 2), ("x", "y")), Mesh((2,), ("x",), (8, 9)))
        {0: 0, 1: 0, 2: 1, 3: 1, 8: 2, 9: 2}
    """
    hosts: dict[int, int] = {}
    first = 0
    for mesh in meshes:
        devices = tuple(mesh.device_ids)
        length = mesh.shape[-1] if mesh.shape else 1
        hosts |= {device: first + i // length for i, device in enumerate(devices)}
        first += -(-len(devices) // length)
    return hosts


_TABLE = (
    ("S0RR", (2, 4), "S0RR", (2, 4)),
    ("RRR", (2, 4), "S0RR", (2, 4)),
    ("RS0R", (2, 4), "S0RR", (2, 4)),
    ("RS01R", (2, 4), "S01RR", (2, 4)),
    ("S1RR", (2, 4), "S0RR", (2, 4)),
    ("S0RR", (2, 4), "S0RR", (3, 4)),
    ("S1RR", (1, 4), "RRR", (2, 4)),
    ("RRR", (2, 3), "RRR", (3, 2)),
    ("RS0R", (2, 4), "RRS0", (2, 4)),
)
