"""The command line of netlab; the scripts `netlab` and `netlab-rsh` in this folder call it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import NoReturn

if not __package__:  # run as `python3 integration/netlab`: make `import netlab` find this folder
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from netlab import Lab, NetlabError, attach, labs, supported

# In a new user namespace, a process is root over networks and mounts, but it may not write to /run.
# So an empty /run is mounted over it, for this command only.
_ROOTLESS = 'mount -t tmpfs netlab /run; mkdir /run/netns; exec "$@"'
_SSH_OPTIONS_WITH_VALUE = ("-l", "-p", "-o", "-i", "-F", "-c", "-e")


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv[:1] == ["rsh"]:  # argparse would parse ssh's options as ours
            _rsh(argv[1:])
        return _dispatch(_parser().parse_args(argv))
    except (NetlabError, OSError) as error:
        print(f"netlab: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="netlab", description="Emulate a small cluster on one Linux machine."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="bring a lab up")
    up.add_argument("--hosts", type=int, default=4)
    up.add_argument(
        "--rate", default="200mbit", help="rate of each host in each direction; or none"
    )
    up.add_argument("--name", default="lab")
    up.add_argument("--mtu", type=int, default=9000)
    up.add_argument("--qdisc", choices=("tbf", "htb"), default="tbf")
    up.add_argument(
        "--congestion", default="reno", help="congestion control of TCP (default: %(default)s)"
    )
    execute = commands.add_parser("exec", help="run a command in a host")
    execute.add_argument("--name", default="lab")
    execute.add_argument("host", help="0, h0, lab-h0 or its IP address")
    execute.add_argument("words", nargs=argparse.REMAINDER)
    commands.add_parser(
        "rsh", help="like exec, with the arguments of ssh, for a launcher option of mpirun"
    )
    status = commands.add_parser("status", help="show labs, with bytes sent and received")
    status.add_argument("--name")
    down = commands.add_parser("down", help="remove a lab and end the processes in it")
    down.add_argument("--name", default="lab")
    down.add_argument("--all", action="store_true")
    commands.add_parser("check", help="say whether a lab can be brought up on this machine")
    rootless = commands.add_parser(
        "rootless", help="run a command that brings up labs, without root"
    )
    rootless.add_argument("words", nargs=argparse.REMAINDER)
    return parser


def _dispatch(args: argparse.Namespace) -> int:
    match args.command:
        case "up":
            lab = Lab(
                args.hosts,
                args.rate,
                args.name,
                mtu=args.mtu,
                qdisc=args.qdisc,
                congestion=args.congestion,
            ).up()
            for host in range(lab.hosts):
                print(lab.hostname(host), lab.ip(host))
        case "exec":
            command = _command(args)
            attach(args.name).enter(args.host)
            os.execvp(command[0], command)
        case "status":
            for lab in map(attach, [args.name] if args.name else labs()):
                seen = {"pids": lab.pids(), "drops": lab.drops(), "bytes": lab.stats()}
                print(json.dumps({**lab.state(), **seen}))
        case "down":
            for name in labs() if args.all else [args.name]:
                attach(name).down()
        case "rootless":
            namespaces = ["unshare", "-Urnm", "--propagation", "private"]
            os.execvp("unshare", [*namespaces, "sh", "-ec", _ROOTLESS, "sh", *_command(args)])
        case "check":
            missing = supported()
            print(missing or "ok")
            return 1 if missing else 0
    return 0


def _command(args: argparse.Namespace) -> list[str]:
    words: list[str] = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise NetlabError(f"{args.command} needs a command to run; got none")
    return words


def _rsh(args: list[str]) -> NoReturn:
    """Run a shell line in a host; called like ssh: [options] HOST word..."""
    args = list(args)
    while args and args[0].startswith("-"):
        if args.pop(0) in _SSH_OPTIONS_WITH_VALUE and args:
            args.pop(0)
    if len(args) < 2:
        raise NetlabError(f"rsh needs HOST and a command; got {args}")
    host, line = args[0], " ".join(args[1:])
    with_host = []
    for lab in map(attach, labs()):
        try:
            lab.index(host)
        except NetlabError:
            continue
        with_host.append(lab)
    if len(with_host) != 1:
        names = " ".join(lab.name for lab in with_host) or "none"
        raise NetlabError(f"HOST is in exactly one lab; {host!r} is in: {names}; use LAB-hN")
    with_host[0].enter(host)
    os.execvp("/bin/sh", ["/bin/sh", "-c", line])


if __name__ == "__main__":
    sys.exit(main())
