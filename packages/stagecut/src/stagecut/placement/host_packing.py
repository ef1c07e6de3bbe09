"""A kind of host: how many devices it has, and into which parts it may be divided.

Alpa (5.2, appendix A) divides a host of 2^p devices into powers of two, because then any parts that
have as many devices as some hosts also fill these hosts, and the search need only count devices.
Its proof joins parts until they are whole hosts: two of the smallest part make one of the next. On
other hosts we ask when counting is enough:

- Every part must divide the host. If m does not divide M, M parts of m devices have as many devices
  as m hosts, but cannot fill one of them.
- If k parts of m make one of km, joining them loses nothing: what can be covered after it could be
  before. So only the multisets that have nothing to join must be looked at, and of these only those
  of two hosts or more, as one host is filled by any parts that have as many devices. -> uncoverable

On a host of a power of two there is no such multiset, which is Alpa's theorem. With all divisors as
parts the first host on which some fails has 30 devices: 15 + 10 + 10 + 6 + 6 + 6 + 6 + 1 = 2 * 30.
The next have 60, 66, 84 and 90.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from stagecut.base.checks import is_count
from stagecut.errors import InvalidInputError

MOST_DEVICES = 1 << 20
"""Of a host, and of a cluster: more is a slip of the finger, and would take hours."""


@dataclass(frozen=True, slots=True)
class HostKind:
    """Hosts that are alike.

    Raises:
        InvalidInputError: There is no device, or more than a million, or the parts are not rising
            or do not end with the whole host.

    Examples:
        >>> HostKind(12).parts
        (1, 2, 3, 4, 6, 12)
        >>> HostKind(8, parts=(2, 8))  # no stage on a single device
        HostKind(n_devices=8, name='', parts=(2, 8))
    """

    n_devices: int
    name: str = ""
    """Tells kinds of hosts of one cluster apart."""
    parts: tuple[int, ...] = ()
    """How many devices of a host a stage may have, rising, at last all.

    Left out: all divisors of `n_devices` if these cover whatever is asked of them, else as many as
    divide each other, growing by the smallest prime factor that is left. Any others may be given,
    such as 4 devices of 6; but if they do not divide the host, what can be used together has to be
    explored (`packing_states`), which takes the longer the more hosts and sizes there are.
    """

    def __post_init__(self) -> None:
        if not is_count(self.n_devices) or self.n_devices > MOST_DEVICES:
            raise InvalidInputError(
                f"a host has at most {MOST_DEVICES:,} devices, and at least one device; "
                f"got n_devices={self.n_devices!r}"
            )
        parts = tuple(self.parts) or _usual_parts(self.n_devices)
        if (
            not all(map(is_count, parts))
            or parts != tuple(sorted(set(parts)))
            or parts[-1] != self.n_devices
        ):
            raise InvalidInputError(
                "parts of a host rise from at least one device to all of its devices; "
                f"got parts={parts} and n_devices={self.n_devices}"
            )
        object.__setattr__(self, "parts", parts)


@cache
def uncoverable(n_devices: int, parts: tuple[int, ...]) -> tuple[int, ...] | None:
    """Parts that have as many devices as some hosts, but do not fill them.

    Args:
        n_devices: Of a host.
        parts: That a host may be divided into; each divides `n_devices`, the last is `n_devices`.

    Returns:
        Those that fill the fewest hosts by their number of devices; None if any parts fill hosts.

    Examples:
        >>> uncoverable(6, (1, 2, 3, 6))
        >>> uncoverable(30, (1, 6, 10, 15, 30))
        (15, 10, 10, 6, 6, 6, 6, 1)
    """
    proper = parts[-2::-1]
    # Of fewer than this many equal parts none can be joined to a larger one.
    joined = {m: min(k // m for k in parts if k > m and k % m == 0) for m in proper}
    most = sum((joined[m] - 1) * m for m in proper)
    for total in range(2 * n_devices, most + 1, n_devices):
        for multiset in _with_total(total, proper, joined):
            if not _fills(multiset, n_devices):
                return multiset
    return None


def _usual_parts(n_devices: int) -> tuple[int, ...]:
    divisors = tuple(m for m in range(1, n_devices + 1) if n_devices % m == 0)
    if uncoverable(n_devices, divisors) is None:
        return divisors
    chain = [1]
    while chain[-1] < n_devices:
        chain.append(next(m for m in divisors if m > chain[-1] and m % chain[-1] == 0))
    return tuple(chain)


def _with_total(
    total: int, parts: tuple[int, ...], fewer_than: dict[int, int]
) -> Iterator[tuple[int, ...]]:
    """Multisets of falling parts, fewer than so many of each, that sum up to `total`."""
    if not parts:
        if total == 0:
            yield ()
        return
    part, rest = parts[0], parts[1:]
    most_of_rest = sum((fewer_than[m] - 1) * m for m in rest)
    for n in range(min(fewer_than[part] - 1, total // part), -1, -1):
        if total - n * part > most_of_rest:
            return
        for others in _with_total(total - n * part, rest, fewer_than):
            yield (part,) * n + others


def _fills(parts: tuple[int, ...], n_devices: int) -> bool:
    """Whether falling parts can be divided among hosts so that each is full."""
    if not parts:
        return True
    return any(_fills(rest, n_devices) for rest in _without(n_devices - parts[0], parts[1:]))


def _without(total: int, parts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """What is left of falling parts if some that sum up to `total` are taken."""
    if total == 0:
        yield parts
    for at, part in enumerate(parts):
        if part <= total and (at == 0 or part != parts[at - 1]):
            for rest in _without(total - part, parts[at + 1 :]):
                yield parts[:at] + rest
