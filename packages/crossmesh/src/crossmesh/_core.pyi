from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

def cells(
    src: Sequence[Sequence[Sequence[tuple[int, int]]]],
    dst: Sequence[Sequence[Sequence[tuple[int, int]]]],
    most_boxes: int,
) -> list[tuple[int, int, list[list[tuple[int, int]]]]]: ...
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
