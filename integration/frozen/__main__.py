"""`python integration/frozen freeze|check FILE [--only TEXT]`."""

import argparse
import hashlib
import json
import sys
import time
import warnings
from pathlib import Path

if not __package__:  # run by its folder's name: make `import frozen` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from frozen.cases import CASES


def main() -> int:
    """The exit status: 1 if an answer is another one than was frozen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("freeze", "check"))
    parser.add_argument("file", type=Path, help="JSON: by name of a case, the digest of its answer")
    parser.add_argument("--only", default="", help="what names of cases have in them")
    given = parser.parse_args()
    frozen: dict[str, str] = json.loads(given.file.read_text()) if given.file.exists() else {}
    changed = []
    for name in (name for name in CASES if given.only in name):
        start_s = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            digest = hashlib.sha256(CASES[name]().encode()).hexdigest()[:16]
        is_other = given.what == "check" and frozen.get(name) != digest
        changed += [name] if is_other else []
        sign = "CHANGED" if is_other else digest
        print(f"{sign:16} {time.monotonic() - start_s:6.1f} s  {name}", flush=True)
        if given.what == "freeze":
            frozen[name] = digest
            given.file.write_text(json.dumps(frozen, indent=1, sort_keys=True) + "\n")
    print(f"{len(changed)} changed" if given.what == "check" else f"{len(frozen)} frozen")
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
