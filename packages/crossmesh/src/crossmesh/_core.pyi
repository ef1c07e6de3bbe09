from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

def unit_tasks(
    shape: Sequence[int],
    src: Sequence[tuple[int, Sequence[tuple[int, int]]]],
    dst: Sequence[tuple[int, Sequence[tuple[int, int]]]],
    host_of: Mapping[int, int],
    one_receiver: bool,
) -> list[tuple[list[tuple[int, int]], list[int], list[int]]]: ...
def balance(
    n_bytes: Sequence[int],
    sender_hosts: Sequence[Sequence[int]],
    receiver_hosts: Sequence[Sequence[int]],
    rates: Mapping[int, float],
) -> list[int]: ...
def order_jobs(
    durations_s: Sequence[float], ports: Sequence[Sequence[int]], n_devices: Sequence[int]
) -> list[int]: ...
def finish_s(
    durations_s: Sequence[float], ports: Sequence[Sequence[int]], order: Sequence[int]
) -> float: ...
def copy_box(
    dst: npt.NDArray[np.generic],
    dst_start: Sequence[int],
    src: npt.NDArray[np.generic],
    src_start: Sequence[int],
    extent: Sequence[int],
) -> None: ...
