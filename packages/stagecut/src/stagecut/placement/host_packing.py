"""A kind of host: the number of its devices, and the parts into which it may be divided.

Alpa (5.2, appendix A) divides a host of 2^p devices into parts that are powers of two. Then parts
which together have as many devices as some hosts can always be packed so that they fill these
hosts, and the search only has to count devices. The proof joins parts until they are whole hosts:
two parts of the smallest size make one of the next size. For other hosts, counting is enough under
these conditions:

- Every part must divide the host. If m does not divide M, then M parts of m devices have as many
  devices as m hosts of M devices, but cannot fill a single one of them.
- If k parts of m devices can be replaced by one part of km devices, doing so loses nothing: hosts
  that can be filled with the large part can be filled with the small ones. So it is enough to check
  the multisets of parts in which nothing can be joined. Of these, only multisets that have as many
  devices as two hosts or more matter, as parts that add up to one host fill it. -> uncoverable

If the host has 2^p devices, there is no such multiset that fails, which is Alpa's theorem. With all
divisors as parts, the smallest host for which one fails has 30 devices:
15 + 10 + 10 + 6 + 6 + 6 + 6 + 1 = 2 * 30. The next ones have 60, 66, 84 and 90.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from stagecut.base.checks import is_count
from stagecut.errors import InvalidInputError

MOST_DEVICES = 1 << 20
"""Limit for a host, and for a cluster. A larger number is taken for a typing error: planning for
it would take hours."""


@dataclass(frozen=True, slots=True)
class HostKind:
    """A kind of host. All hosts of one kind are alike.

    Raises:
        InvalidInputError: There is no device, or more than a million, or the parts are not
            ascending or do not end with the whole host.

    Examples:
        >>> HostKind(12).parts
        (1, 2, 3, 4, 6, 12)
        >>> HostKind(8, parts=(2, 8))  # no stage on a single device
        HostKind(n_devices=8, name='', parts=(2, 8))
    """

    n_devices: int
    name: str = ""
    """Distinguishes the kinds of hosts of one cluster."""
    parts: tuple[int, ...] = ()
    """The numbers of devices of one host that a stage may have, ascending; the last is all of them.

    By default all divisors of `n_devices`, if counting devices is enough with them (see above), and
    else a chain of divisors each of which divides the next, growing by the smallest prime factor
    that is left. Any other parts are allowed, such as 4 devices of 6. But if they do not divide the
    host, the submeshes that fit together have to be enumerated (`packing_states`), which takes
    longer the more hosts and parts there are.
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
                "parts of a host are ascending, from at least one device to all of its devices; "
                f"got parts={parts} and n_devices={self.n_devices}"
            )
        object.__setattr__(self, "parts", parts)


@cache
def uncoverable(n_devices: int, parts: tuple[int, ...]) -> tuple[int, ...] | None:
    """A multiset of parts that has as many devices as some number of hosts, but cannot fill them.

    Args:
        n_devices: Devices of a host.
        parts: The parts that a host may be divided into, ascending; each divides `n_devices`, and
            the last is `n_devices`.

    Returns:
        One with the fewest devices; None if there is none, so that counting is enough.

    Examples:
        >>> uncoverable(6, (1, 2, 3, 6))
        >>> uncoverable(30, (1, 6, 10, 15, 30))
        (15, 10, 10, 6, 6, 6, 6, 1)
    """
    proper = parts[-2::-1]
    # As long as a multiset has fewer equal parts than this, they cannot be joined to a larger one.
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
    """Multisets of parts that sum up to `total`, with fewer than `fewer_than[m]` of each part m.

    `parts` is descending, and so is each multiset.
    """
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
    """Whether the parts, in descending order, can be divided among hosts so that each is full."""
    if not parts:
        return True
    return any(_fills(rest, n_devices) for rest in _without(n_devices - parts[0], parts[1:]))


def _without(total: int, parts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The parts that are left, for each way to take some that sum up to `total`; descending."""
    if total == 0:
        yield parts
    for at, part in enumerate(parts):
        if part <= total and (at == 0 or part != parts[at - 1]):
            for rest in _without(total - part, parts[at + 1 :]):
                yield parts[:at] + rest
