"""Runs and reports: `python integration/torch_hosts`; `... report` only reports.

It has to run as root, or by `integration/netlab/netlab rootless --`, and takes a minute.
"""

import datetime
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import torch_hosts` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from torch_hosts.launch import lab, launch
from torch_hosts.report import as_json, program_of, record, rewrite

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "pytorch.md"
RESULT = DOCS / "results" / "hosts" / "torch.json"


def main(arguments: list[str]) -> None:
    """Run, unless told to report only; then write the page from the record."""
    if arguments not in ([], ["report"]):
        sys.exit(__doc__)
    if not arguments:
        with tempfile.TemporaryDirectory() as folder, lab() as hosts:
            program = Path(folder, "train_llama.py")
            program.write_text(program_of(PAGE.read_text(encoding="utf-8")))
            ran = launch(hosts, program)
        about = {
            "date": str(datetime.date.today()),
            "versions": ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers")),
        }
        RESULT.write_text(as_json(record(about, ran)))
    rewrite(PAGE, json.loads(RESULT.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
