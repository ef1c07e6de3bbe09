"""Makes unit tasks of drafts and of the hosts that they pass: their bytes, devices and chunks."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from crossmesh.base.geometry import n_elements
from crossmesh.base.task import TaskStrategy, UnitTask
from crossmesh.base.tensor import Tensor
from crossmesh.search.unit_tasks import Devices, Draft
from crossmesh.transfer.solver import HostSend

UNPASSED = 16
"""Chunks that no host forwards are at least this many times longer: no host waits for them, and
each chunk costs headers and acknowledgements, 290 bytes with gloo [measured: case 4 of Table 2 on
emulated hosts, 2026-11-20: with chunks of 12 KiB hosts move 2.3 % more than the plan says]."""


def tasks_of(
    drafts: Sequence[Draft],
    sends: Iterable[HostSend],
    tensors: Sequence[Tensor],
    host_of: Mapping[int, int],
    strategy: TaskStrategy,
    chunks: int,
    chunk_bytes: int,
) -> tuple[UnitTask, ...]:
    """One task for each send that has bytes, in the order of the sends.

    Args:
        drafts: The drafts that the sends refer to by index.
        sends: The sends; together, those of a draft bring all its bytes to each receiver.
        tensors: The tensors that the pieces refer to by index.
        host_of: The host of each device.
        strategy: How bytes reach several receivers.
        chunks: The most chunks of a task.
        chunk_bytes: The fewest bytes of a chunk; chunks that no host forwards have at least
            `UNPASSED` times as many.
    """
    sent: defaultdict[int, int] = defaultdict(int)
    hosts_with: dict[int, set[int]] = {}  # by `id` of receivers, which many drafts have
    reached: dict[tuple[int, tuple[int, ...]], tuple[Devices, Devices]] = {}
    tasks: list[UnitTask] = []
    for number, (start, stop), senders, hosts, route in sends:
        draft = drafts[number]
        part = start, stop
        if stop - start < draft.n_bytes:
            part = _border(draft, start, tensors), _border(draft, stop, tensors)
        n_bytes = part[1] - part[0]
        if n_bytes == 0:
            continue
        of = id(draft.receivers)
        if of not in hosts_with:
            hosts_with[of] = {host_of[device] for device in draft.receivers}
        receiving = hosts[len(set(senders)) - 1 :]
        if receiving[0] not in hosts_with[of]:
            receiving = receiving[1:]
        at = of, receiving
        if at not in reached:
            in_order = _in_order_of_hosts(draft.receivers, receiving, host_of)
            reached[at] = tuple(sorted(in_order)), in_order
        receivers, in_order = reached[at]
        adders = _adders(draft, receivers, senders, hosts, host_of, sent)
        path = (*adders, *in_order)
        if adders[-1] in receivers:
            path = (*adders, *(device for device in in_order if device != adders[-1]))
        for device in path[:-1]:
            sent[device] += n_bytes
        at_least = chunk_bytes * (1 if len(hosts) > 2 else UNPASSED)
        tasks.append(
            UnitTask(
                len(tasks),
                draft.pieces,
                part,
                draft.terms,
                draft.reduction,
                receivers,
                strategy,
                path,
                max(1, min(chunks if route == "pipelined" else 1, n_bytes // at_least)),
                _tree(path, len(draft.terms), host_of) if route == "tree" else (),
            )
        )
    return tuple(tasks)


def _tree(path: Sequence[int], n_terms: int, host_of: Mapping[int, int]) -> tuple[int, ...]:
    """The binomial tree of the hosts on a path; on each host, the devices form a chain.

    Hosts are numbered from the root. The parent of a host is the one whose number lacks the highest
    bit of its own, so each of `ceil(log2 n)` steps reaches as many hosts as all steps before it
    (Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005, section 4). Terms go the other way, to the
    root.
    """
    tree: dict[int, int] = {}
    root = n_terms - 1
    for places in (range(root, -1, -1), range(root, len(path))):
        first_on_host: list[int] = []  # for each host on the way from the root, a place
        for place in places:
            before = place - places.step
            if place != root and host_of[path[place]] == host_of[path[before]]:
                tree[place] = before
                continue
            number = len(first_on_host)
            first_on_host.append(place)
            if number:
                tree[place] = first_on_host[number - 2 ** (number.bit_length() - 1)]
    return tuple(tree[place] for place in range(len(path)) if place != root)


def _border(draft: Draft, at: int, tensors: Sequence[Tensor]) -> int:
    """The last border between two elements that is not after byte `at` of the packed pieces."""
    if at in (0, draft.n_bytes):
        return at
    before = 0
    for tensor, box in draft.pieces:
        item_bytes = tensors[tensor].item_bytes
        n_bytes = n_elements(box) * item_bytes
        if at < before + n_bytes:
            return at - (at - before) % item_bytes
        before += n_bytes
    return before


def _in_order_of_hosts(
    devices: Devices, hosts: Sequence[int], host_of: Mapping[int, int]
) -> Devices:
    """The devices on some hosts, in the order of the hosts."""
    on_host: dict[int, list[int]] = {host: [] for host in hosts}
    for device in devices:
        if host_of[device] in on_host:
            on_host[host_of[device]].append(device)
    return tuple(chain.from_iterable(on_host.values()))


def _adders(
    draft: Draft,
    receivers: Sequence[int],
    senders: Sequence[int],
    hosts: Sequence[int],
    host_of: Mapping[int, int],
    sent: Mapping[int, int],
) -> list[int]:
    """The devices that add one term each, in their order on a path of hosts.

    Of the devices that hold a term on its host, the one that has sent the fewest bytes adds it; of
    several, the lowest. On the last adding host, devices that also receive add last, because the
    last adder need not be sent the result.
    """
    adders: list[int] = []
    for term, host in zip(draft.terms, senders, strict=True):
        if len(term) == 1:
            adders += term
            continue
        on_host = [device for device in term if host_of[device] == host]
        adders.append(min(on_host, key=lambda device: (sent[device], device)))
    if len(adders) > 1:
        adding_hosts = {host: i for i, host in enumerate(hosts[: len(set(senders))])}
        adders.sort(key=lambda d: (adding_hosts[host_of[d]], d in receivers))
    return adders
