"""What does a data-parallel step of our PyTorch runtime cost beside hand-written DDP?

Baseline: `torch.nn.parallel.DistributedDataParallel` in the same two processes, which gloo joins;
the same GPT (4 blocks, d = 256, sequence 128, vocabulary 2048, 16 examples in both together), loss
and AdamW. Ours is the plan of that strategy for the step of the whole batch. A round is one step;
rounds of both take turns, so that both see the same machine. Losses of the first are equal, and
what our step tells torch to send is what the plan says, in bytes of each kind, in fewer messages.

Seconds are of wall time, as processes also wait for each other; the second ratio is of CPU time,
summed over both processes. Each has one thread. Not shown: GPUs, where a bucket travels while the
device computes; two gloo processes on two cores have nothing to do it with.
"""

import contextlib
import json
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import Started, started

PROGRAM = str(Path(__file__).with_name("torch_ddp.py"))
SIZES, SMALL = "256,4,128,2048,16", "16,1,8,32,4"
START_S, END_S = 300.0, 60.0

Ask = Callable[[str], dict[str, Any]]


@pytest.fixture
def ask(benchmark) -> Iterator[Ask]:
    """Lets both processes do something, and waits until they have."""
    sizes = SMALL if benchmark.disabled else SIZES
    with socket.create_server(("localhost", 0)) as server:
        port = str(server.getsockname()[1])
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "2", PROGRAM, port, sizes]
        with started(command) as processes:
            with accepted(server, processes) as connection:
                connection.settimeout(START_S)
                line = connection.makefile("rw")

                def answer(word: str) -> dict[str, Any]:
                    if word != "begin":
                        print(word, file=line, flush=True)
                    try:
                        found: dict[str, Any] = json.loads(line.readline())
                    except TimeoutError:
                        raise processes.late(START_S) from None
                    return found

                yield answer
                print("end", file=line, flush=True)
            ended = processes.wait(END_S)
            assert ended.status == 0, ended.output


def accepted(server: socket.socket, processes: Started) -> socket.socket:
    """The connection of process 0, as soon as it comes."""
    server.settimeout(1.0)
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        processes.check()
        with contextlib.suppress(TimeoutError):
            return server.accept()[0]
    raise processes.late(START_S)


def test_step(benchmark, ask):
    begun = ask("begin")
    ours, by_hand = begun["losses"]
    assert ours == pytest.approx(by_hand, rel=1e-5)
    sent, planned = begun["bytes"]
    assert sent == planned
    n_messages, n_collectives = begun["calls"]
    assert 0 < n_messages < n_collectives + benchmark.disabled, "what is tiny sends hardly anything"

    seconds = {"ours": [], "by hand": []}
    wall = []

    def train_by_hand():
        start_s = time.perf_counter()
        seconds["by hand"].append(ask("by hand")["cpu_s"])
        wall.append(time.perf_counter() - start_s)

    def train():
        seconds["ours"].append(ask("ours")["cpu_s"])

    benchmark.pedantic(train, setup=train_by_hand, rounds=15, warmup_rounds=3)
    if not benchmark.disabled:
        theirs_s = statistics.median(wall[3:])
        cpu_s = {who: statistics.median(found[3:]) for who, found in seconds.items()}
        benchmark.extra_info["by hand"] = f"{theirs_s * 1e3:.0f} ms"
        ratio = benchmark.stats.stats.median / theirs_s
        benchmark.extra_info["beside by hand"] = f"{ratio:.3f} times"
        benchmark.extra_info["in CPU time"] = f"{cpu_s['ours'] / cpu_s['by hand']:.3f} times"
        benchmark.extra_info["messages"] = f"{n_messages} for {n_collectives} collectives"
