"""Emulates a small cluster on one Linux machine, for tests that move real bytes over slow links.

Each *host* is a network namespace with its own host name, System-V IPC space and `/dev/shm`. It is
joined to a common switch by a veth pair that is shaped in both directions: a host sends at most
`rate` and receives at most `rate` at the same time (full duplex), whatever the other hosts do.
Traffic inside a host is not shaped.

    with netlab.Lab(hosts=4, rate="200mbit") as lab:
        server = lab.popen(0, ["python3", "server.py"])
        lab.run(1, ["python3", "client.py", lab.ip(0)], check=True)

It uses the standard library only. If a lab cannot be brought up, `supported()` says what is
missing.
"""

from .lab import Lab, attach, labs, supported
from .system import NetlabError, parse_rate

__all__ = ["Lab", "NetlabError", "attach", "labs", "parse_rate", "supported"]
