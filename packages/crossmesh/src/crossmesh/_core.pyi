from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

def cells(
    src: Sequence[Sequence[Sequence[tuple[int, int]]]],
    dst: Sequence[Sequence[Sequence[tuple[int, int]]]],
    most_boxes: int,
) -> list[tuple[int, int, list[list[tuple[int, int]]]]]: ...
def search(
    flows: Sequence[tuple[int, int, Sequence[Sequence[int]], Sequence[int], bool]],
    rates: Sequence[float],
    latency_s: float,
    strategy: str,
    n_chunks: int,
    chunk_bytes: int,
    order: str,
    split: bool,
    seed: int,
    steps: int,
) -> list[tuple[int, int, int, list[int], list[int], str]]: ...
def simulate(
    jobs: Sequence[tuple[int, Sequence[int], int, bool, str, int, Sequence[int]]],
    rates: Sequence[float],
    latency_s: float,
    together: bool,
) -> list[tuple[float, list[tuple[int, int, float, float, float]]]]: ...
def lower_bound(
    flows: Sequence[tuple[int, int, Sequence[Sequence[int]], Sequence[int], bool]],
    rates: Sequence[float],
) -> float: ...
def copy_box(
    dst: npt.NDArray[np.generic],
    dst_start: Sequence[int],
    src: npt.NDArray[np.generic],
    src_start: Sequence[int],
    extent: Sequence[int],
) -> None: ...
def pack(dst: npt.NDArray[np.uint8], src: npt.NDArray[np.generic], first: int) -> None: ...
def unpack(dst: npt.NDArray[np.generic], first: int, src: npt.NDArray[np.uint8]) -> None: ...
