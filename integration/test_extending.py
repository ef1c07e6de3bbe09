"""The programs of docs/extending.md run, and their assertions hold."""

import re
import sys
from pathlib import Path

from launching import run

PAGE = Path(__file__).resolve().parent.parent / "docs" / "extending.md"


def test_the_programs_of_the_page_run(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    ended = run([sys.executable, "-c", "".join(blocks)], deadline_s=600, cwd=tmp_path)
    assert ended.status == 0, ended.output
    assert "no sharding rule" not in ended.output
