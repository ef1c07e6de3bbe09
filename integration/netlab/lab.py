"""The emulated cluster: `Lab.up` makes the hosts and the switch, `Lab.down` removes everything."""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

from .system import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWUTS,
    MS_BIND,
    MS_REC,
    MS_SLAVE,
    NETNS_DIR,
    STATE_DIR,
    NetlabError,
    libc,
    lock,
    mount,
    parse_rate,
    sh,
)

_SHAPING = ("rate", "mtu", "burst", "limit", "qdisc", "congestion", "sockbuf")
MAX_HOSTS = 200  # the number of a host has to fit into one byte of its address

# Runs inside each new host, which has its own /proc/sys/net.
_SYSCTL = r"""
import sys
congestion, buffer = sys.argv[1:]
for key, value in {
    "tcp_congestion_control": congestion,
    "tcp_rmem": f"4096 131072 {buffer}",
    "tcp_wmem": f"4096 65536 {buffer}",
    "tcp_no_metrics_save": "1",
    "tcp_slow_start_after_idle": "0",
}.items():
    try:
        with open(f"/proc/sys/net/ipv4/{key}", "w") as file:
            file.write(value)
    except OSError as error:
        sys.exit(f"netlab: sysctl {key}={value}: {error}")
"""


class Lab:
    """A set of emulated hosts; as a context manager, it is up inside the block.

    Args:
        hosts: The number of hosts.
        rate: The most that a host sends, and the most that it receives, such as "200mbit"; None for
            no shaping.
        name: 1-16 of a-z0-9. Labs with different names can be up at once, and do not interact.
        subnet: The first two bytes of the hosts' addresses.
        mtu: The bytes of a frame.
        burst: The bytes that the shaper lets pass at once. By default 2 ms of traffic, but at least
            96 KiB: then a GSO packet of 64 KiB passes whole, and no CPU time is spent on cutting
            it.
        limit: The bytes that queue before the shaper. By default 32 socket buffers, so that no
            packet is dropped.
        qdisc: The shaper of the kernel, "tbf" or "htb".
        congestion: The congestion control of TCP. On some kernels, cubic is not allowed outside the
            first namespace, and the pacing of bbr wakes a timer for every few packets.
        sockbuf: The most bytes that a socket buffers.
    """

    def __init__(
        self,
        hosts: int = 4,
        rate: str | float | None = "200mbit",
        name: str = "lab",
        subnet: str = "10.231",
        mtu: int = 9000,
        burst: int | None = None,
        limit: int | None = None,
        qdisc: str = "tbf",
        congestion: str = "reno",
        sockbuf: int = 1 << 20,
    ) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9]{0,15}", name):
            raise NetlabError(f"a lab's name is 1-16 of a-z0-9, a letter first; got {name!r}")
        if not 1 <= hosts <= MAX_HOSTS:
            raise NetlabError(f"a lab has 1 to {MAX_HOSTS} hosts; got hosts={hosts}")
        self.hosts, self.name, self.subnet, self.mtu = hosts, name, subnet, mtu
        self.rate = None if rate in (None, "none") else parse_rate(rate)  # bits per second
        self.qdisc, self.congestion, self.sockbuf = qdisc, congestion, sockbuf
        self.burst = burst or max(96 << 10, (self.rate or 0) // 8 // 500)
        self.limit = limit or 32 * sockbuf
        self._old_handlers: dict[int, Any] = {}

    def state(self) -> dict[str, Any]:
        """The arguments of the constructor in a form that JSON can hold."""
        return {name: getattr(self, name) for name in ("hosts", "name", "subnet", *_SHAPING)}

    # Names

    def namespace(self, host: int | str) -> str:
        """The network namespace of a host."""
        return f"nl-{self.name}-h{self.index(host)}"

    @property
    def switch(self) -> str:
        """The network namespace of the switch."""
        return f"nl-{self.name}-sw"

    def hostname(self, host: int | str) -> str:
        """The name that `hostname` prints in a host, and that the other hosts can resolve."""
        return f"{self.name}-h{self.index(host)}"

    def ip(self, host: int | str) -> str:
        """The IPv4 address of a host."""
        return f"{self.subnet}.0.{self.index(host) + 1}"

    def index(self, host: int | str) -> int:
        """The index of a host that is called 2, "2", "h2", "lab-h2" or by its address."""
        named = re.fullmatch(rf"(?:{re.escape(self.name)}-)?h?([0-9]+)", str(host))
        addressed = re.fullmatch(rf"{re.escape(self.subnet)}\.0\.([0-9]+)", str(host))
        index = int(named[1]) if named else int(addressed[1]) - 1 if addressed else -1
        if not 0 <= index < self.hosts:
            raise NetlabError(f"lab {self.name} has hosts 0 to {self.hosts - 1}; got {host!r}")
        return index

    def _dir(self, host: int | str) -> str:
        return f"{STATE_DIR}/{self.name}/h{self.index(host)}"

    @property
    def _state_file(self) -> str:
        return f"{STATE_DIR}/{self.name}.json"

    # Up and down

    def up(self) -> Lab:
        """Make the hosts and the switch; if this fails, nothing is left behind."""
        if os.geteuid() != 0:
            raise NetlabError("a lab needs root; without it, use `netlab rootless -- COMMAND`")
        with lock():
            if os.path.exists(self._state_file):
                raise NetlabError(
                    f"lab {self.name} is up already; remove it by `netlab down --name {self.name}`"
                )
            with open(self._state_file, "w") as file:
                json.dump(self.state(), file)
            try:
                self._build()
            except BaseException:
                self._remove()
                raise
        return self

    def down(self) -> None:
        """End the processes in the hosts and remove the lab, also if it is half built."""
        with lock():
            self._remove()

    def __enter__(self) -> Lab:
        self.up()
        atexit.register(self.down)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):  # they must not leave the lab behind
                self._old_handlers[number] = signal.signal(number, _exit_on_signal)
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        atexit.unregister(self.down)
        self.down()

    def _build(self) -> None:
        switch = self.switch
        sh("ip", "netns", "add", switch)
        sh("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        sh("ip", "-n", switch, "link", "set", "br0", "mtu", self.mtu, "up")
        for host in range(self.hosts):
            ns, port, mtu = self.namespace(host), f"p{host}", ("mtu", self.mtu)
            sh("ip", "netns", "add", ns)
            peer = ("peer", "name", port, "netns", switch)
            sh("ip", "link", "add", "eth0", "netns", ns, *mtu, "type", "veth", *peer)
            sh("ip", "-n", switch, "link", "set", port, *mtu, "master", "br0", "up")
            sh("ip", "-n", ns, "addr", "add", f"{self.ip(host)}/16", "dev", "eth0")
            sh("ip", "-n", ns, "link", "set", "lo", "up")
            sh("ip", "-n", ns, "link", "set", "eth0", *mtu, "up")
            self._shape(ns, "eth0")  # the direction in which the host sends
            self._shape(switch, port)  # the direction in which the host receives
            self._isolate(host)
            tune = [sys.executable, "-c", _SYSCTL, self.congestion, str(self.sockbuf)]
            self.run(host, tune, check=True)

    def _shape(self, ns: str, device: str) -> None:
        if self.rate is None:
            return
        rate, dev = f"{self.rate}bit", ("dev", device)
        root = ("tc", "-n", ns, "qdisc", "replace", *dev, "root")
        if self.qdisc == "tbf":
            sh(*root, "tbf", "rate", rate, "burst", self.burst, "limit", self.limit)
        elif self.qdisc == "htb":
            sh(*root, "handle", "1:", "htb", "default", "10")
            klass = ("tc", "-n", ns, "class", "replace", *dev, "parent", "1:", "classid", "1:10")
            buckets = ("burst", self.burst, "cburst", self.burst, "quantum", "60000")
            sh(*klass, "htb", "rate", rate, "ceil", rate, *buckets)
            leaf = ("tc", "-n", ns, "qdisc", "replace", *dev, "parent", "1:10")
            sh(*leaf, "bfifo", "limit", self.limit)
        else:
            raise NetlabError(f"the shaper is tbf or htb; got qdisc={self.qdisc!r}")

    def _isolate(self, host: int) -> None:
        """Make the host name, IPC space and /dev/shm of a host, as mounts that need no process."""
        folder = self._dir(host)
        os.makedirs(f"{folder}/shm", exist_ok=True)
        sh("mount", "-t", "tmpfs", "-o", "mode=1777", f"netlab-{self.name}", f"{folder}/shm")
        for name in ("uts", "ipc"):
            with open(f"{folder}/{name}", "w"):
                pass
        spaces = (f"--uts={folder}/uts", f"--ipc={folder}/ipc")
        sh("unshare", *spaces, "hostname", self.hostname(host))
        with open(f"{folder}/hosts", "w") as file:
            file.write("127.0.0.1 localhost\n")
            file.writelines(f"{self.ip(h)} {self.hostname(h)}\n" for h in range(self.hosts))

    def _remove(self) -> None:
        self._end_processes()
        for host in range(self.hosts):
            for name in ("uts", "ipc", "shm"):
                path = f"{self._dir(host)}/{name}"
                while os.path.exists(path) and _succeeds("umount", "-l", path):
                    pass  # it may have been mounted several times
        if os.path.exists(f"{NETNS_DIR}/{self.switch}"):
            # Delete links before namespaces, because the kernel frees a namespace only later.
            for host in range(self.hosts):
                sh("ip", "-n", self.switch, "link", "del", f"p{host}", check=False)
        for ns in [self.switch, *map(self.namespace, range(self.hosts))]:
            if os.path.exists(f"{NETNS_DIR}/{ns}"):
                sh("ip", "netns", "del", ns, check=False)
        shutil.rmtree(f"{STATE_DIR}/{self.name}", ignore_errors=True)
        if os.path.exists(self._state_file):
            os.unlink(self._state_file)

    def _end_processes(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.pids():
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue  # it has ended meanwhile
            deadline = time.monotonic() + 1.0
            while self.pids() and time.monotonic() < deadline:
                time.sleep(0.02)

    # Running things in a host

    def enter(self, host: int | str) -> None:
        """Move the calling process into a host. It cannot go back; call this in a child process."""
        folder = self._dir(host)
        for path, kind in (
            (f"{NETNS_DIR}/{self.namespace(host)}", CLONE_NEWNET),
            (f"{folder}/uts", CLONE_NEWUTS),
            (f"{folder}/ipc", CLONE_NEWIPC),
        ):
            fd = os.open(path, os.O_RDONLY)
            try:
                libc("setns", fd, kind)
            finally:
                os.close(fd)
        libc("unshare", CLONE_NEWNS)
        mount("none", "/", flags=MS_REC | MS_SLAVE)
        mount(f"{folder}/shm", "/dev/shm", flags=MS_BIND)
        mount(f"{folder}/hosts", "/etc/hosts", flags=MS_BIND)
        mount("sysfs", "/sys", "sysfs")  # so that /sys/class/net shows the devices of the host

    def argv(self, host: int | str, command: Sequence[object]) -> list[str]:
        """A command line that runs `command` in a host, for any launcher."""
        netlab = [sys.executable, os.path.dirname(os.path.abspath(__file__)), "exec"]
        return [*netlab, "--name", self.name, str(self.index(host)), *map(str, command)]

    def popen(
        self, host: int | str, command: Sequence[object], **options: Any
    ) -> subprocess.Popen[Any]:
        """`subprocess.Popen` in a host."""
        return subprocess.Popen(self.argv(host, command), **options)

    def run(
        self,
        host: int | str,
        command: Sequence[object],
        *,
        timeout: float = 3600.0,
        **options: Any,
    ) -> subprocess.CompletedProcess[Any]:
        """`subprocess.run` in a host, for at most `timeout` seconds."""
        return subprocess.run(self.argv(host, command), timeout=timeout, **options)

    # Looking at it

    def pids(self) -> list[int]:
        """The processes in the hosts, recognised by the inode of their network namespace."""
        inodes = set()
        for host in range(self.hosts):
            try:
                inodes.add(os.stat(f"{NETNS_DIR}/{self.namespace(host)}").st_ino)
            except FileNotFoundError:
                continue  # not built yet, or removed already
        pids = []
        for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
            try:
                inside = os.stat(f"/proc/{pid}/ns/net").st_ino in inodes
            except OSError:
                continue  # it has ended meanwhile
            if inside and pid != os.getpid():
                pids.append(pid)
        return pids

    def stats(self) -> dict[int, dict[str, int]]:
        """The bytes that each host sent ("tx") and received ("rx"), and its dropped packets."""
        counts = {}
        for host in range(self.hosts):
            shown = sh("ip", "-j", "-s", "-n", self.namespace(host), "link", "show", "eth0")
            link = json.loads(shown)[0]["stats64"]
            counts[host] = {
                "tx": link["tx"]["bytes"],
                "rx": link["rx"]["bytes"],
                "dropped": link["tx"]["dropped"] + link["rx"]["dropped"],
            }
        return counts

    def drops(self) -> int:
        """The packets that the shapers of all hosts have dropped."""
        namespaces = [self.switch, *map(self.namespace, range(self.hosts))]
        shown = [json.loads(sh("tc", "-j", "-s", "-n", ns, "qdisc", "show")) for ns in namespaces]
        return sum(queue.get("drops", 0) for queues in shown for queue in queues)


def attach(name: str = "lab") -> Lab:
    """The lab with this name, which another process has brought up."""
    try:
        with open(f"{STATE_DIR}/{name}.json") as file:
            return Lab(**json.load(file))
    except FileNotFoundError:
        raise NetlabError(f"no lab {name} is up; up are: {' '.join(labs()) or 'none'}") from None


def labs() -> list[str]:
    """The names of the labs that are up, including half-built ones."""
    files = os.listdir(STATE_DIR) if os.path.isdir(STATE_DIR) else []
    return sorted(file.removesuffix(".json") for file in files if file.endswith(".json"))


def supported() -> str:
    """The reason why no lab can be brought up on this machine; "" if one can. Tries it."""
    if os.geteuid() != 0:
        return "not root"
    for tool in ("ip", "tc", "ss", "unshare", "mount"):
        if not shutil.which(tool):
            return f"no {tool} command (iproute2 and util-linux have them)"
    try:
        with Lab(hosts=1, rate="100mbit", name=f"p{os.getpid()}"):
            return ""
    except (NetlabError, subprocess.CalledProcessError, OSError) as error:
        return str(error)


def _succeeds(*command: str) -> bool:
    return (
        subprocess.run(command, stderr=subprocess.DEVNULL, check=False, timeout=300).returncode == 0
    )


def _exit_on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
