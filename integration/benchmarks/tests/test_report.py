import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import report

PROGRAM = '''"""How long does an addition take?"""

def test_add(benchmark):
    benchmark.extra_info["terms"] = 2
    assert benchmark(lambda: 1 + 1) == 2

def test_power(benchmark):
    benchmark.extra_info["baseline"] = "test_add"
    assert benchmark(lambda: 2 ** 9) == 512
'''


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """The record of a real, tiny run."""
    root = tmp_path_factory.mktemp("root")
    (root / "test_sum.py").write_text(PROGRAM)
    (root / "pytest.toml").write_text("[pytest]\n")
    quick = ["--benchmark-min-rounds=3", "--benchmark-max-time=0.01", "--benchmark-json=raw.json"]
    alone = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_sum.py", *quick],
        cwd=root,
        check=True,
        env=alone,
        timeout=300,
    )
    return report.make_record("sums", json.loads((root / "raw.json").read_text()), root)


def test_a_record_has_all_that_is_needed_to_judge_it(record):
    assert record["about"] == {"test_sum.py": "How long does an addition take?"}
    assert [bench["name"] for bench in record["benchmarks"]] == ["test_add", "test_power"]
    assert record["commit"]
    assert record["machine"].endswith("cores")
    assert record["load_15_min"] >= 0
    assert record["versions"]["python"] == sys.version.split()[0]
    for bench in record["benchmarks"]:
        n = bench["rounds"]
        assert n >= 3
        assert len(bench["seconds"]) == (n if n <= 100 else 21)
        assert min(bench["seconds"]) <= bench["median_s"] <= max(bench["seconds"])


def test_a_record_survives_its_file(record, tmp_path):
    name = report.record_name(record)
    (tmp_path / name).write_text(json.dumps(record))
    assert name.startswith("sums_")
    assert name.endswith(f"_{record['date']}.json")
    assert report.read_records(tmp_path) == [record]


def test_the_page_shows_question_and_figures(record):
    page = report.render([record])
    assert "How long does an addition take?" in page
    median = report.format_seconds(record["benchmarks"][0]["median_s"])
    assert f"| `test_add` | {median} |" in page
    assert "| benchmark | median | IQR | rounds | of baseline | terms |" in page
    assert "|  | 2 |" in page


def test_the_page_compares_a_benchmark_with_its_baseline(record):
    add, power = record["benchmarks"]
    ratio = power["median_s"] / add["median_s"]
    assert f"| {ratio:.3g} × `test_add` |" in report.render([record])
    assert "| `test_add` did not run |" in report.render([{**record, "benchmarks": [power]}])


def test_the_page_names_the_commit_and_whether_files_had_changed(record):
    changed = {**record, "commit": "0123456789abcdef+changes"}
    assert "`0123456789ab+changes`" in report.render([changed])


def test_the_page_shows_only_the_newest_of_a_suite_and_machine(record):
    old, other = {**record, "date": "2001-01-01"}, {**record, "date": "2001-01-02", "machine": "m"}
    page = report.render([record, old, other])
    assert "2001-01-01" not in page
    assert "2001-01-02" in page
    assert f"## sums: {record['machine']}, {record['date']}" in page


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (123.4, "123 s"),
        (1.0, "1.00 s"),
        (0.0123, "12.3 ms"),
        (4.56e-6, "4.56 µs"),
        (0.0, "0.00 ns"),
    ],
)
def test_seconds_get_the_unit_that_suits(seconds, text):
    assert report.format_seconds(seconds) == text


def test_the_page_in_docs_is_rendered_from_the_records_beside_it():
    docs = Path(__file__).resolve().parents[3] / "docs"
    assert (docs / "benchmarks.md").read_text() == report.render(
        report.read_records(docs / "results")
    )
