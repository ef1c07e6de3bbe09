"""The nine transfers of Table 2 of Zhuang et al., MLSys 2023."""

from dataclasses import dataclass

from shardspec import Layout, Mesh, Spec

SHAPE = (1024, 1024, 512)
"""Of the tensor (section 5.1.2). The paper pads it in case 6, where 1024 is cut in three."""


@dataclass(frozen=True, slots=True)
class PaperCase:
    """A row of the table."""

    number: int
    """From 1 on, as in the table."""
    src: Layout
    """On devices from 0 on."""
    dst: Layout
    """On the devices after these."""

    @property
    def hosts(self) -> dict[int, int]:
        """The host of each device: a row of a mesh is one."""
        return rows_as_hosts(self.src.mesh, self.dst.mesh)


def cases(shape: tuple[int, int, int] = SHAPE) -> tuple[PaperCase, ...]:
    """All rows of the table.

    The table prints the destination of case 5 as S_0RR, which is no spec of its notation; it is
    read as S^0RR.

    Args:
        shape: Of the tensor, to make it smaller; divisible by 8 in the first two dims, or not.

    Examples:
        >>> case = cases()[6]
        >>> str(case.src.spec), case.src.mesh.shape, str(case.dst.spec), case.dst.mesh.shape
        ('S1RR', (1, 4), 'RRR', (2, 4))
        >>> case.hosts
        {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 1, 7: 1, 8: 2, 9: 2, 10: 2, 11: 2}
    """
    found = []
    for number, (src, src_mesh, dst, dst_mesh) in enumerate(_TABLE, 1):
        mesh = Mesh(src_mesh, ("x", "y"))
        n_devices = len(mesh.device_ids)
        other = Mesh(dst_mesh, ("x", "y"))
        after = tuple(device + n_devices for device in other.device_ids)
        found.append(
            PaperCase(
                number,
                Layout(shape, mesh, Spec.parse(src)),
                Layout(shape, Mesh(dst_mesh, ("x", "y"), after), Spec.parse(dst)),
            )
        )
    return tuple(found)


def rows_as_hosts(*meshes: Mesh) -> dict[int, int]:
    """Hosts from 0 on, one for the devices of each row of each mesh.

    Section 5 of the paper writes a mesh as hosts times devices of a host.

    Args:
        meshes: Without devices in common. A row is along the last axis.

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
