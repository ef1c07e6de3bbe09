"""Predict the steps that others measured: `python integration/published [TEXT...]`.

Only steps whose name contains one of the texts are predicted; all, if there is none. Without texts,
writes docs/results/published.json, docs/published.md and docs/published.svg.
"""

import json
import sys
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import published` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from published.cases import groups
from published.predict import Prediction, predict
from published.report import page, plot

DOCS = Path(__file__).resolve().parents[2] / "docs"
RECORD = DOCS / "results" / "published.json"


def main() -> None:
    """Predict, and write the page if everything was predicted."""
    texts = sys.argv[1:]
    if any(text in ("-h", "--help") for text in texts):
        print(__doc__)
        return
    chosen = [g for g in groups() if g.is_known and (not texts or any(t in g.name for t in texts))]
    if not chosen:
        sys.exit(
            f"no step has a name with {' or '.join(texts)}: {', '.join(g.name for g in groups())}"
        )
    found = predict(chosen, _tell)
    if not texts:
        write(found)


def write(found: list[Prediction]) -> None:
    """Write the record, the page and the picture."""
    rows = [one.to_dict() for one in found]
    RECORD.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (DOCS / "published.md").write_text(page(found), encoding="utf-8")
    plot(found, DOCS / "published.svg")


def _tell(one: Prediction) -> None:
    ratio = "ran out of memory" if one.ratio is None else f"{one.ratio:.2f} of the measured time"
    print(
        f"{one.group}, {one.plan}: {one.predicted_s:.3f} s, {ratio}; {one.predicted_gib:.1f} GiB, "
        f"fits: {one.predicted_fits} (did: {one.measured_fits})",
        flush=True,
    )


if __name__ == "__main__":
    main()
