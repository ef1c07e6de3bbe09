"""Keeps and renders results for `nox -s bench`.

`python integration/benchmarks keep SUITE RAW.json` keeps the results of a suite, and `python
integration/benchmarks render` writes the page.
"""

import json
import sys
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import benchmarks` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.report import make_record, read_records, record_name, render

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["keep", suite, raw]:
            record = make_record(suite, json.loads(Path(raw).read_text()), ROOT)
            RESULTS.mkdir(parents=True, exist_ok=True)
            (RESULTS / record_name(record)).write_text(json.dumps(record, indent=1) + "\n")
        case ["render"]:
            (ROOT / "docs" / "benchmarks.md").write_text(render(read_records(RESULTS)))
        case _:
            sys.exit(__doc__)
