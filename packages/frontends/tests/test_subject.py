"""What `python -m frontends plan --model` takes: names and files, of PyTorch and of JAX."""

import json
import sys
from pathlib import Path

import pytest
from frontends.answer.plan import Plan
from frontends.cli.commands import main
from frontends.cli.demo.torch_models import TORCH_MODELS, from_config
from frontends.errors import PlanError

IN_TORCH = """
import torch
from neighbour import WIDTH

def tiny():
    model = torch.nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return model, optimizer, lambda model, x: model(x).square().mean(), torch.ones(8, WIDTH)
"""
IN_JAX = """
import jax
import jax.numpy as jnp

def tiny():
    def train_step(w, x):
        return w - jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)
    return train_step, (jnp.ones((8, 8)), jnp.ones((16, 8)))
"""
SMALL = ["--devices", "4", "--strategy", "data_parallel", "--microbatches", "1"]


@pytest.fixture(autouse=True)
def path_of_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command adds the folder of a file to it; that goes with the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of the command line."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    return int(stopped.value.code or 0), *capsys.readouterr()


@pytest.mark.parametrize(
    ("program", "state"), [(IN_TORCH, "params['weight']"), (IN_JAX, "w")], ids=["torch", "jax"]
)
def test_plans_what_a_function_of_a_file_returns(
    program: str, state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(program)
    (tmp_path / "neighbour.py").write_text("WIDTH = 8\n")
    saved = str(tmp_path / "plan.json")
    model = f"{tmp_path}/mine.py:tiny"
    code, printed, errors = run(capsys, "plan", "--model", model, *SMALL, "--save", saved)
    assert code == 0, errors
    assert "by data_parallel" in printed
    assert state in {v.value for stage in Plan.load(saved).stages for v in stage.inputs}
    code, printed, errors = run(capsys, "verify", saved)
    assert (code, errors) == (0, "")
    code, printed, _ = run(capsys, "show", saved, "--explain", state)
    assert code == 0
    assert f"{state} on stage 0" in printed


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nowhere.py:tiny", "there is no file nowhere.py"),
        ("{folder}/mine.py:large", "mine.py has no function large"),
        ("{folder}/mine.py:three", "returns ['int', 'int', 'int']"),
        ("{folder}/mine.py:swapped", "got model=SGD"),
        ("{folder}/mine.py:lost", "got loss_fn=None"),
        ("{folder}/mine.py:sized", "mine.py:sized needs width: give them defaults"),
        ("{folder}/config.json", "a configuration has no batch: give --batch and --sequence"),
    ],
)
def test_a_file_without_a_model_is_one_line(
    model: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "neighbour.py").write_text("WIDTH = 8\n")
    (tmp_path / "mine.py").write_text(
        IN_TORCH + "def three(): return 1, 2, 3\n"
        "def swapped():\n    a, b, c, d = tiny()\n    return b, a, c, d\n"
        "def lost():\n    a, b, c, d = tiny()\n    return a, b, None, d\n"
        "def sized(width, *, depth=1): return tiny()\n"
    )
    code, printed, errors = run(capsys, "plan", "--model", model.format(folder=tmp_path))
    assert (code, printed) == (1, "")
    assert errors.startswith("error: ")
    assert message in " ".join(errors.split())


def test_sizes_are_of_models_that_have_names(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = run(capsys, "plan", "--model", "mine.py:tiny", "--layers", "2")
    assert code == 2
    assert "size options change a model that has a name" in errors


@pytest.mark.parametrize("content", ["[]", "{}", '{"model_type": "llama"}', "no json"])
def test_a_file_that_configures_nothing_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(PlanError, match="a configuration of transformers is a JSON object"):
        from_config(path)


def test_without_transformers_a_model_by_name_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    code, printed, errors = run(capsys, "plan", "--model", "llama-3-8b")
    assert (code, printed) == (1, "")
    assert errors == (
        "error: this command needs transformers: pip install 'meshwright-frontends[models]'\n"
    )


@pytest.mark.parametrize(
    "architecture", ["AutoConfig", "logging", "__version__", "NoModelForCausalLM"]
)
def test_a_configuration_names_a_model_and_nothing_else_of_transformers(
    tmp_path: Path, architecture: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "architectures": [architecture]}))
    with pytest.raises(PlanError, match="has no model"):
        from_config(path).make({"batch": 2, "sequence": 8})


def test_a_configuration_brings_no_code(tmp_path: Path) -> None:
    config = {
        **TORCH_MODELS["llama-tiny"].config,
        "architectures": ["LlamaForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "modeling.Evil"},
        "attn_implementation": "somebody/their-kernel",
        "_attn_implementation": "somebody/their-kernel",
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    model, *_ = from_config(path).make({"batch": 2, "sequence": 8})
    assert model.config._attn_implementation in ("sdpa", "eager")
    assert not hasattr(model.config, "auto_map")
