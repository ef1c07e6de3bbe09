"""The output of the hosts, as a record and at the end of the page."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from torch_hosts.launch import N_HOSTS, PER_HOST, RATE, Ran

BEGIN = "<!-- From here on written by `python integration/torch_hosts`. -->"
END = "<!-- Up to here. -->"

Record = Mapping[str, str | int]


def program_of(page: str) -> str:
    """The first program in Python of a page."""
    program = re.search(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    assert program is not None, "the page begins with a program"
    return program[1]


def record(about: Mapping[str, str], ran: Ran) -> Record:
    """The record of a run."""
    return {**about, "hosts": N_HOSTS, "processes": PER_HOST, "rate": RATE, **asdict(ran)}


def rewrite(page: Path, kept: Record) -> None:
    """Write the output of a record to the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{_text(kept)}\n\n{END}{after}", encoding="utf-8")


def as_json(kept: Record) -> str:
    """A record as the JSON text of its file."""
    return json.dumps(kept, indent=1) + "\n"


def _text(kept: Record) -> str:
    crossed = int(kept["crossed_bytes"]) / 1e6
    return (
        f"Host 0 printed\n\n```\n{str(kept['printed']).rstrip()}\n```\n\n"
        f"{kept['date']}, {kept['versions']}; {kept['hosts']} hosts of {kept['processes']} "
        f"processes each, links of {kept['rate']}. Between the hosts went {crossed:.1f} MB, all "
        "messages of torchrun and gloo included."
    )
