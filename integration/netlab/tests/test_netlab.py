"""Labs that are really brought up: hosts are separate, links are shaped, nothing is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import netlab
import pytest
from netlab import __main__ as cli

FOLDER = Path(netlab.__file__).parent
FLOW = FOLDER / "flow.py"
MISSING = netlab.supported()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"no lab can be brought up: {MISSING}")

# A shaper limits a stream, and a busy machine slows it while another process holds the core. So a
# rate must reach LOWEST times the nominal rate in one of three tries, and never exceed HIGHEST
# times it. The 20 MB are counted from the receiver's first read; until then, up to 1 MiB of the
# socket buffer and 96 KiB of the shaper's bucket may have arrived, which gives 1.06 of the nominal
# rate.
N_BYTES = 20_000_000
LOWEST, HIGHEST = 0.8, 1.08


def leftovers(name: str) -> list[str]:
    namespaces = subprocess.run(
        ["ip", "netns"], capture_output=True, text=True, check=True, timeout=300
    ).stdout
    paths = [f"/run/netlab/{name}", f"/run/netlab/{name}.json"]
    remaining = [path for path in paths if os.path.exists(path)]
    remaining += [line for line in namespaces.splitlines() if line.startswith(f"nl-{name}-")]
    mounts = Path("/proc/mounts").read_text().splitlines()
    return remaining + [line for line in mounts if f"/run/netlab/{name}/" in line]


def start_flow(lab, source, target, n_bytes, port):
    """Start a stream; the receiver prints its rate when it has ended."""
    receiver = lab.popen(
        target, [sys.executable, FLOW, "recv", port, 1], stdout=subprocess.PIPE, text=True
    )
    look = ["ip", "netns", "exec", lab.namespace(target), "ss", "-Htln", f"sport = :{port}"]
    while not subprocess.run(look, capture_output=True, text=True, check=True, timeout=300).stdout:
        assert receiver.poll() is None
        time.sleep(0.02)
    sender = lab.popen(source, [sys.executable, FLOW, "send", lab.ip(target), port, n_bytes])
    return receiver, sender


def finish_flow(flow) -> float:
    """Wait for a stream and return its Mbit/s."""
    receiver, sender = flow
    line = receiver.communicate(timeout=60)[0]
    assert sender.wait(60) == 0
    return float(line.split(" s ")[1].split()[0])


def assert_shaped(measure, nominal: tuple[float, ...]) -> None:
    """Assert that streams reach their nominal rates.

    `measure()` returns the rates, in Mbit/s, of streams that run together.
    """
    best = [0.0] * len(nominal)
    for _ in range(3):
        ratios = [rate / target for rate, target in zip(measure(), nominal, strict=True)]
        assert max(ratios) < HIGHEST
        best = list(map(max, best, ratios))
        if min(best) > LOWEST:
            return
    raise AssertionError(f"best rates {best} of the nominal ones, each should reach {LOWEST}")


def test_hosts_are_apart_and_named():
    with netlab.Lab(hosts=3, rate="100mbit", name="ta") as lab:

        def output(host, *command):
            return lab.run(host, command, capture_output=True, text=True, check=True).stdout

        assert [output(host, "hostname").strip() for host in range(3)] == [
            "ta-h0",
            "ta-h1",
            "ta-h2",
        ]
        lab.run(0, ["sh", "-c", "echo x > /dev/shm/netlab-file"], check=True)
        assert lab.run(0, ["test", "-s", "/dev/shm/netlab-file"]).returncode == 0
        assert lab.run(1, ["test", "-e", "/dev/shm/netlab-file"]).returncode == 1
        assert not os.path.exists("/dev/shm/netlab-file")
        assert output(2, "getent", "hosts", "ta-h1").split()[0] == lab.ip(1)
    assert not leftovers("ta")


@pytest.mark.parametrize("qdisc", ["tbf", "htb"])
def test_a_host_sends_and_receives_at_its_rate_at_once(qdisc):
    with netlab.Lab(hosts=3, rate="200mbit", name="tb", qdisc=qdisc) as lab:

        def measure():
            flows = start_flow(lab, 0, 1, N_BYTES, 5001), start_flow(lab, 2, 0, N_BYTES, 5002)
            return [finish_flow(flow) for flow in flows]

        assert_shaped(measure, (200, 200))
        assert lab.drops() == 0
    assert not leftovers("tb")


@pytest.mark.parametrize("qdisc", ["tbf", "htb"])
@pytest.mark.parametrize(
    ("pairs", "shared", "direction"),
    [(((0, 2), (1, 2)), 2, "rx"), (((0, 1), (0, 2)), 0, "tx")],
    ids=["two_senders", "two_receivers"],
)
def test_two_streams_share_the_link_of_one_host(pairs, shared, direction, qdisc):
    with netlab.Lab(hosts=3, rate="200mbit", name="tc", qdisc=qdisc) as lab:
        before = lab.stats()[shared][direction]
        start = time.monotonic()
        flows = [
            start_flow(lab, source, target, N_BYTES, 5001 + i)
            for i, (source, target) in enumerate(pairs)
        ]
        for flow in flows:
            finish_flow(flow)
        # A busy machine can only make it longer.
        assert time.monotonic() - start > 0.95 * 2 * N_BYTES / 25e6
        moved = lab.stats()[shared][direction] - before
        assert 1 < moved / (2 * N_BYTES) < 1.02  # with headers, without repeated packets
        assert lab.drops() == 0
    assert not leftovers("tc")


def test_two_labs_at_once_have_rates_of_their_own():
    with (
        netlab.Lab(hosts=2, rate="100mbit", name="td") as slow,
        netlab.Lab(hosts=2, rate="200mbit", name="te") as fast,
    ):

        def measure():
            flows = start_flow(slow, 0, 1, N_BYTES, 5001), start_flow(fast, 0, 1, N_BYTES, 5001)
            return [finish_flow(flow) for flow in flows]

        assert_shaped(measure, (100, 200))
    assert not leftovers("td") + leftovers("te")


def test_down_ends_the_processes_inside():
    lab = netlab.Lab(hosts=2, rate=None, name="tf").up()
    script = "trap '' TERM; echo ready; sleep 100 & wait; sleep 100"
    process = lab.popen(1, ["sh", "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    assert process.pid in lab.pids()
    lab.down()
    assert process.wait(5) == -signal.SIGKILL
    process.stdout.close()
    assert not lab.pids()
    assert not leftovers("tf")


def start_owner(name: str) -> subprocess.Popen:
    """A process that owns a lab with this name, which is up when this returns."""
    program = f"""
import netlab, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs may ignore it otherwise
with netlab.Lab(hosts=2, name={name!r}) as lab:
    lab.popen(0, ["sleep", "100"])
    print("up", flush=True)
    time.sleep(100)
"""
    owner = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=FOLDER.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert owner.stdout.readline() == "up\n"
    owner.stdout.close()
    return owner


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_to_the_owner_removes_the_lab(number):
    owner = start_owner("tg")
    owner.send_signal(number)
    owner.wait(60)
    assert not leftovers("tg")


def test_down_removes_the_lab_of_a_killed_owner():
    owner = start_owner("th")
    owner.kill()
    owner.wait(60)
    assert leftovers("th")
    assert cli.main(["down", "--name", "th"]) == 0
    assert not leftovers("th")


def test_a_second_up_is_refused_and_leaves_the_first_alone():
    with netlab.Lab(hosts=1, name="ti") as lab:
        with pytest.raises(netlab.NetlabError, match="lab ti is up already"):
            netlab.Lab(hosts=1, name="ti").up()
        assert lab.run(0, ["true"]).returncode == 0


def test_a_failed_up_leaves_nothing():
    with pytest.raises(netlab.NetlabError, match="the shaper is tbf or htb"):
        netlab.Lab(hosts=2, name="tj", qdisc="nosuch").up()
    assert not leftovers("tj")


def test_rsh_takes_ssh_arguments_and_finds_the_host():
    with netlab.Lab(hosts=2, rate=None, name="tk"):
        done = subprocess.run(
            [
                FOLDER / "netlab-rsh",
                "-o",
                "BatchMode=yes",
                "-x",
                "tk-h1",
                "hostname;",
                "echo",
                "$0",
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
    assert done.stdout.split() == ["tk-h1", "/bin/sh"]


def test_rootless_needs_no_root():
    program = """
import netlab
with netlab.Lab(hosts=2, rate="100mbit", name="tl") as lab:
    lab.run(1, ["hostname"], check=True)
"""
    if subprocess.run(
        ["unshare", "-Urnm", "true"], capture_output=True, check=False, timeout=300
    ).returncode:
        pytest.skip("user namespaces are not allowed here: unshare -Urnm fails")
    done = subprocess.run(
        [FOLDER / "netlab", "rootless", "--", sys.executable, "-c", program],
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "tl-h1", done.stderr
    assert not leftovers("tl")
