"""Freezes or checks answers: `python integration/frozen freeze|check FILE [--only TEXT]`."""

import argparse
import hashlib
import json
import sys
import time
import warnings
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import frozen` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from frozen.cases import CASES


def main() -> int:
    """Freeze or check the answers; returns the exit status, which is 1 if one has changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("freeze", "check"))
    parser.add_argument("file", type=Path, help="JSON file with the digest of each case's answer")
    parser.add_argument("--only", default="", help="only cases with this text in their name")
    options = parser.parse_args()
    frozen: dict[str, str] = json.loads(options.file.read_text()) if options.file.exists() else {}
    changed = []
    for name in (name for name in CASES if options.only in name):
        start_s = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            digest = hashlib.sha256(CASES[name]().encode()).hexdigest()[:16]
        is_other = options.what == "check" and frozen.get(name) != digest
        changed += [name] if is_other else []
        sign = "CHANGED" if is_other else digest
        print(f"{sign:16} {time.monotonic() - start_s:6.1f} s  {name}", flush=True)
        if options.what == "freeze":
            frozen[name] = digest
            options.file.write_text(json.dumps(frozen, indent=1, sort_keys=True) + "\n")
    print(f"{len(changed)} changed" if options.what == "check" else f"{len(frozen)} frozen")
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
