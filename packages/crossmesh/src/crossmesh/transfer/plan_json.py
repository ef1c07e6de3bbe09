"""Writes plans as JSON with a format version, and reads them back to equal values.

A document is `{"crossmesh": "TransferPlan", "version": 2, ...}` with one entry for each part of a
plan. Each layout is written once, and tensors refer to it by its index. So are the pieces of tasks,
as many tasks have the same; in version 1, each task had its own. Specs are text in Alpa's
notation; an infinite rate is null, because JSON has no infinity. Any other text is refused. The
reader checks what execution relies on: devices have hosts, boxes lie within their tensors, parts
within the packed pieces, and paths lead from one device of each term to all receivers. It does not
check again that tasks and copies deliver everything: the digest of the plan shows that they are the
ones that were written.
"""

import json
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NoReturn, TypeVar, get_args

from shardspec import Chunking, ChunkingRule, Layout, Mesh, Reduction, ShardspecError, Spec

from crossmesh.base.geometry import n_elements
from crossmesh.base.links import Links
from crossmesh.base.task import Copy, Piece, TaskStrategy, UnitTask
from crossmesh.base.tensor import Tensor, dtype_name
from crossmesh.errors import PlanError, RecordError
from crossmesh.transfer.digest import ValueNumbers
from crossmesh.transfer.solver import Order

T = TypeVar("T")
Parts = tuple[
    tuple[Tensor, ...],
    tuple[tuple[int, int], ...],
    Links | None,
    TaskStrategy,
    Order,
    tuple[Copy, ...],
    tuple[UnitTask, ...],
]
"""The fields of a plan, in their order."""

_VERSION = 2
_HEAD = {"crossmesh": "TransferPlan", "version": _VERSION}


def write(
    tensors: Iterable[Tensor],
    hosts: Iterable[tuple[int, int]],
    links: Links | None,
    strategy: TaskStrategy,
    order: Order,
    copies: Iterable[Copy],
    tasks: Iterable[UnitTask],
    digest: str,
) -> str:
    """The JSON text of a plan."""
    layouts: dict[Layout, int] = {}
    tensor_records = [
        {
            "name": tensor.name,
            "dtype": tensor.dtype,
            "src": layouts.setdefault(tensor.src, len(layouts)),
            "dst": layouts.setdefault(tensor.dst, len(layouts)),
        }
        for tensor in tensors
    ]
    rates = links and {
        "host_bytes_per_s": links.host_bytes_per_s,
        "device_bytes_per_s": None
        if math.isinf(links.device_bytes_per_s)
        else links.device_bytes_per_s,
        "latency_s": links.latency_s,
    }
    pieces = ValueNumbers()
    copy_records = [{"device": copy.device, "pieces": pieces.of(copy.pieces)} for copy in copies]
    task_records = [
        {**{name: getattr(task, name) for name in _TASK}, "pieces": pieces.of(task.pieces)}
        for task in tasks
    ]
    document = {
        **_HEAD,
        "strategy": strategy,
        "order": order,
        "links": rates,
        "hosts": list(hosts),
        "layouts": [_layout_record(layout) for layout in layouts],
        "tensors": tensor_records,
        "pieces": pieces.values,
        "copies": copy_records,
        "tasks": task_records,
        "digest": digest,
    }
    return json.dumps(document, allow_nan=False)


_TASK = (
    "pieces",
    "part",
    "terms",
    "reduction",
    "receivers",
    "strategy",
    "path",
    "n_chunks",
    "tree",
)


def _layout_record(layout: Layout) -> dict[str, Any]:
    return {
        "shape": layout.shape,
        "mesh": layout.mesh.shape,
        "axis_names": layout.mesh.axis_names,
        "device_ids": list(layout.mesh.device_ids),
        "spec": str(layout.spec),
        "chunking": layout.rules,
    }


def read(text: str) -> tuple[Parts, str, int]:
    """The fields, the digest and the version of the plan whose text `write` returned.

    Raises:
        RecordError: The text is not such JSON, or its parts do not fit together.
    """
    try:
        document = json.loads(text, parse_constant=_no_constant)
    except (ValueError, TypeError, RecursionError) as error:
        raise RecordError(f"a plan is JSON; {str(error)[:200]}") from None
    is_first = isinstance(document, dict) and str(document.get("version")) == "1"
    parts_of = tuple(name for name in _PARTS if name != "pieces" or not is_first)
    entries = _entries(document, (*_HEAD, *parts_of), "a plan")
    version = _integer(entries[1], "version")
    if entries[0] == _HEAD["crossmesh"] and version > _VERSION:
        raise RecordError(
            f"this plan was written by a newer crossmesh, in version {version} of the format; this "
            f"one reads versions 1 to {_VERSION}: update crossmesh, or plan again"
        )
    if entries[0] != _HEAD["crossmesh"] or version < 1:
        _fail("a plan", f"of this kind and version: {_HEAD}", entries[:2])
    part = dict(zip(parts_of, entries[2:], strict=True))
    hosts, tasks = part["hosts"], part["tasks"]
    read_hosts = _all(hosts, _pair, "hosts")
    devices = [device for device, _ in read_hosts]
    if devices != sorted(set(devices)):
        _fail("hosts", "one pair a device, sorted by device", hosts)
    reader = _Reader(frozenset(devices))
    reader.layouts = _all(part["layouts"], reader.layout, "layouts")
    reader.tensors = _all(part["tensors"], reader.tensor, "tensors")
    if not is_first:
        reader.written = _all(part["pieces"], reader.pieces, "pieces")
    links = part["links"]
    parts = (
        reader.tensors,
        read_hosts,
        None if links is None else _links(links, {host for _, host in read_hosts}),
        _one_of(part["strategy"], get_args(TaskStrategy), "strategy"),
        _one_of(part["order"], get_args(Order), "order"),
        _all(part["copies"], reader.copy, "copies"),
        tuple(
            reader.task(value, i, f"tasks[{i}]") for i, value in enumerate(_list(tasks, "tasks"))
        ),
    )
    return parts, _text(part["digest"], "digest"), version


_PARTS = (
    *("strategy", "order", "links", "hosts", "layouts", "tensors", "pieces", "copies", "tasks"),
    "digest",
)


class _Reader:
    """Reads the parts that refer to devices, layouts or tensors."""

    layouts: tuple[Layout, ...]
    tensors: tuple[Tensor, ...]
    written: tuple[tuple[Piece, ...], ...] | None = None
    """The pieces that tasks and copies refer to; None if each of them has its own."""

    def __init__(self, devices: frozenset[int]) -> None:
        self._devices = devices
        self._packed: dict[int, int] = {}  # by `id` of pieces that tasks or `written` have

    def layout(self, value: object, where: str) -> Layout:
        keys = ("shape", "mesh", "axis_names", "device_ids", "spec", "chunking")
        shape, mesh, names, devices, spec, rules = _entries(value, keys, where)
        try:
            return Layout(
                _integers(shape, f"{where} shape"),
                Mesh(
                    _integers(mesh, f"{where} mesh"),
                    _all(names, _text, f"{where} axis_names"),
                    self._known(devices, f"{where} device_ids"),
                ),
                Spec.parse(_text(spec, f"{where} spec")),
                _all(rules, _chunking, f"{where} chunking"),
            )
        except ShardspecError as error:
            raise RecordError(f"{where}: {error}") from None

    def tensor(self, value: object, where: str) -> Tensor:
        name, dtype, src, dst = _entries(value, ("name", "dtype", "src", "dst"), where)
        try:
            known = dtype_name(_text(dtype, f"{where} dtype")) == dtype
        except PlanError:
            known = False
        if not known:
            _fail(f"{where} dtype", "the name of a dtype, as numpy or ml_dtypes spell it", dtype)
        source = self.layouts[_index(src, self.layouts, f"{where} src")]
        destination = self.layouts[_index(dst, self.layouts, f"{where} dst")]
        if source.shape != destination.shape:
            _fail(where, "two layouts of one shape", value)
        return Tensor(_text(name, f"{where} name"), dtype, source, destination)

    def copy(self, value: object, where: str) -> Copy:
        device, pieces = _entries(value, ("device", "pieces"), where)
        (known,) = self._known([device], f"{where} device")
        return Copy(known, self._pieces_of(pieces, where))

    def task(self, value: object, index: int, where: str) -> UnitTask:
        pieces, part, terms, reduction, receivers, strategy, path, n_chunks, tree = _entries(
            value, _TASK, where
        )
        task = UnitTask(
            index,
            self._pieces_of(pieces, where),
            _pair(part, f"{where} part"),
            _all(terms, self._known, f"{where} terms"),
            _all(reduction, _level, f"{where} reduction"),
            self._known(receivers, f"{where} receivers"),
            _one_of(strategy, get_args(TaskStrategy), f"{where} strategy"),
            self._known(path, f"{where} path"),
            _integer(n_chunks, f"{where} n_chunks"),
            _integers(tree, f"{where} tree"),
        )
        packed = self._packed_bytes(task.pieces)
        if not 0 <= task.part[0] < task.part[1] <= packed:
            _fail(f"{where} part", f"some of the {packed} bytes of its pieces", part)
        n_terms = math.prod(count for _, count in task.reduction)
        if len(terms) != n_terms or not task.receivers or task.n_chunks < 1:
            _fail(where, f"{n_terms} terms, receivers, and at least one chunk", value)
        adders = [sum(device in term for device in task.adders) for term in task.terms]
        leads = len(task.adders) == n_terms and adders == [1] * n_terms
        if not leads or sorted(task.followers) != sorted({*task.receivers} - {task.sender}):
            _fail(f"{where} path", "one device of each term, then the receivers", path)
        if tree and not _leads(task.tree, len(task.path), n_terms):
            _fail(
                f"{where} tree",
                "one position on the path for each position but that of the last adder",
                tree,
            )
        return task

    def pieces(self, value: object, where: str) -> tuple[Piece, ...]:
        return _all(value, self._piece, where)

    def _pieces_of(self, value: object, where: str) -> tuple[Piece, ...]:
        if self.written is None:
            return self.pieces(value, f"{where} pieces")
        return self.written[_index(value, self.written, f"{where} pieces")]

    def _packed_bytes(self, pieces: tuple[Piece, ...]) -> int:
        if id(pieces) not in self._packed:
            sizes = (n_elements(box) * self.tensors[i].item_bytes for i, box in pieces)
            self._packed[id(pieces)] = sum(sizes)
        return self._packed[id(pieces)]

    def _piece(self, value: object, where: str) -> Piece:
        tensor, box = _items(value, 2, where)
        shape = self.tensors[_index(tensor, self.tensors, f"{where} tensor")].shape
        intervals = _all(box, _pair, f"{where} box")
        inside = len(intervals) == len(shape) and all(
            0 <= start < stop <= size for (start, stop), size in zip(intervals, shape, strict=True)
        )
        if not inside:
            _fail(f"{where} box", f"within a tensor of shape {shape}", box)
        return Piece(tensor, intervals)

    def _known(self, value: object, where: str) -> tuple[int, ...]:
        devices = _integers(value, where)
        if not self._devices.issuperset(devices) or not devices:
            _fail(where, "devices that have a host", value)
        return devices


def _leads(tree: Sequence[int], n_places: int, n_terms: int) -> bool:
    return len(tree) == n_places - 1 and all(
        i < place < n_terms if i < n_terms - 1 else n_terms - 1 <= place <= i
        for i, place in enumerate(tree)
    )


def _chunking(value: object, where: str) -> Chunking:
    if isinstance(value, list):
        return _integers(value, where)
    rule: ChunkingRule = _one_of(value, get_args(ChunkingRule), where)
    return rule


def _links(value: object, of: Collection[int]) -> Links:
    names = ("host_bytes_per_s", "device_bytes_per_s", "latency_s")
    hosts, device, latency_s = _entries(value, names, "links")
    where = "links host_bytes_per_s"
    rates = _all(hosts, _rate, where) if isinstance(hosts, list) else _number(hosts, where)
    try:
        links = Links(
            rates,
            math.inf if device is None else _number(device, "links device_bytes_per_s"),
            _number(latency_s, "links latency_s"),
        )
        links.rates(of)
    except PlanError as error:
        raise RecordError(f"links: {error}") from None
    return links


def _rate(value: object, where: str) -> tuple[int, float]:
    host, rate = _items(value, 2, where)
    return _integer(host, f"{where}[0]"), _number(rate, f"{where}[1]")


def _level(value: object, where: str) -> tuple[Reduction, int]:
    kind, count = _items(value, 2, where)
    reduction: Reduction = _one_of(kind, get_args(Reduction), f"{where}[0]")
    if _integer(count, f"{where}[1]") < 2:
        _fail(where, "a kind and a number of terms above 1", value)
    return reduction, count


def _pair(value: object, where: str) -> tuple[int, int]:
    first, second = _items(value, 2, where)
    return _integer(first, f"{where}[0]"), _integer(second, f"{where}[1]")


def _integers(value: object, where: str) -> tuple[int, ...]:
    return _all(value, _integer, where)


def _index(value: object, of: Sequence[object], where: str) -> int:
    if not 0 <= _integer(value, where) < len(of):
        _fail(where, f"an index from 0, below {len(of)}", value)
    return _integer(value, where)


def _integer(value: object, where: str) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        _fail(where, "a whole number of 64 bits", value)
    return value


def _number(value: object, where: str) -> float:
    if type(value) not in (int, float):
        _fail(where, "a number", value)
    return float(value)  # type: ignore[arg-type]  # int or float


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        _fail(where, "a text", value)
    return value


def _one_of(value: object, known: Sequence[str], where: str) -> Any:
    if not isinstance(value, str) or value not in known:
        _fail(where, f"one of {', '.join(known)}", value)
    return value


def _all(value: object, read: Callable[[Any, str], T], where: str) -> tuple[T, ...]:
    return tuple(read(one, f"{where}[{i}]") for i, one in enumerate(_list(value, where)))


def _items(value: object, count: int, where: str) -> list[Any]:
    if len(_list(value, where)) != count:
        _fail(where, f"a list of {count}", value)
    return _list(value, where)


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        _fail(where, "a list", value)
    return value


def _entries(value: object, names: Sequence[str], where: str) -> list[Any]:
    if not isinstance(value, dict) or value.keys() != set(names):
        _fail(where, f"an object with the entries {', '.join(names)}", value)
    return [value[name] for name in names]


def _fail(where: str, rule: str, value: object) -> NoReturn:
    text = repr(value)
    shown = text if len(text) <= 80 else f"{text[:80]}..."
    raise RecordError(f"{where} is {rule}; got {shown}; TransferPlan.to_json writes such text")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"it has no {name}")
