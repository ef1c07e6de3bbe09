"""Measure the accelerator of this machine.

    python integration/gpu PRESET [NAME...]    # steps of models, by JAX
    python integration/gpu products PRESET     # products of matrices, by PyTorch

PRESET names the cluster whose device this is, such as `h200-sxm`. Only steps whose name contains
one of the texts NAME are measured; rows that the same device and JAX measured before stay. Writes
docs/results/gpu and docs/gpu.md.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import gpu` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import jax
from costmodel import Cluster

from gpu import products
from gpu.measure import CASES, Row, measure
from gpu.report import page, records

DOCS = Path(__file__).resolve().parents[2] / "docs"


def main() -> None:
    """Measure all cases that are asked for, and write the page after each."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if sys.argv[1] == "products":
        return measure_products(*sys.argv[2:])
    preset, *texts = sys.argv[1:]
    cluster = Cluster.preset(preset).resized(n_hosts=1, devices_per_host=1)
    (device, *_) = jax.devices()
    if device.platform == "cpu":
        sys.exit("a measurement needs an accelerator; JAX finds only CPUs here")
    jax.config.update("jax_default_matmul_precision", "highest")
    record = DOCS / "results" / "gpu" / f"{preset}.json"
    head = {"preset": preset, "device": device.device_kind, "jax": jax.__version__}
    rows = {row.name: row for row in recorded(record, head)}
    for name, make in CASES.items():
        if texts and not any(text in name for text in texts):
            continue
        rows[name] = measure(name, make, cluster)
        print(rows[name], flush=True)
        record.parent.mkdir(parents=True, exist_ok=True)
        ordered = [asdict(rows[name]) for name in CASES if name in rows]
        document = {**head, "rows": ordered}
        record.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    render()


def recorded(record: Path, head: dict[str, str]) -> list[Row]:
    """The rows of a record that the same device and JAX measured; none where there is no such."""
    if not record.exists():
        return []
    document = json.loads(record.read_text(encoding="utf-8"))
    same = all(document[key] == value for key, value in head.items())
    return [Row(**row) for row in document["rows"]] if same else []


def measure_products(preset: str) -> None:
    """Measure products of matrices, and write the page."""
    import torch

    document = {
        "device": torch.cuda.get_device_name(),
        "preset": preset,
        "torch": torch.__version__,
        "dtype": "bfloat16",
        "columns": ["m", "n", "k", "batch", "layout", "seconds"],
        "rows": products.measure(),
    }
    record = DOCS / "results" / "gpu" / "products" / f"{preset}.json"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(document) + "\n", encoding="utf-8")
    render()


def render() -> None:
    """Write the page from all records."""
    (DOCS / "gpu.md").write_text(page(*records(DOCS / "results" / "gpu")), encoding="utf-8")


if __name__ == "__main__":
    main()
