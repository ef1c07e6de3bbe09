"""The command line plans models of Hugging Face, which the tests of `frontends` do not use."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from frontends import Plan, PlanError
from frontends.cli.commands import main
from frontends.cli.demo.torch_models import TORCH_MODELS, from_config


def plan(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["plan", "--devices", "4", "--strategy", "megatron", *arguments])
    return int(stopped.value.code or 0)


def test_a_model_is_planned_by_name_with_other_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "plan.json"
    sizes = ["--layers", "1", "--d-model", "64", "--heads", "4", "--sequence", "8", "--batch", "4"]
    assert plan("--model", "llama-tiny", *sizes, "--microbatches", "1", "--save", str(saved)) == 0
    printed, _ = capsys.readouterr()
    assert printed.startswith("Plan for cluster two-hosts: 1 stage on 4 devices")
    stored = {v.value for stage in Plan.load(saved).stages for v in stage.inputs}
    assert "params['model.layers.0.self_attn.q_proj.weight']" in stored
    assert "params['model.layers.1.self_attn.q_proj.weight']" not in stored


def test_a_model_is_planned_by_its_configuration_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = transformers.GPT2Config(
        vocab_size=64, n_embd=32, n_layer=1, n_head=4, n_positions=16, use_cache=False
    )
    config.architectures = ["GPT2LMHeadModel"]
    config.save_pretrained(tmp_path)
    model = str(tmp_path / "config.json")
    sizes = ["--sequence", "8", "--batch", "4", "--microbatches", "1"]
    assert plan("--model", model, *sizes) == 0, capsys.readouterr().err
    assert plan("--model", model, "--sequence", "99", "--batch", "4") == 1
    assert "the model has 16 positions; got sequence=99" in capsys.readouterr().err


@pytest.mark.parametrize("name", TORCH_MODELS)
def test_a_named_model_is_made_without_memory(name: str) -> None:
    model, _, _, batch = TORCH_MODELS[name].make({"n_layers": 1})
    assert {p.device.type for p in model.parameters()} == {"meta"}
    blocks = [m for _, m in model.named_modules() if isinstance(m, torch.nn.ModuleList)]
    assert len(blocks[0]) == 1
    assert batch["input_ids"].shape == (TORCH_MODELS[name].batch, TORCH_MODELS[name].sequence)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"d_model": 33},
            "make a LlamaForCausalLM of this configuration: .* not a multiple",
        ),
        ({"n_heads": 1}, "got n_heads=1 and 2 heads of keys and values"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        TORCH_MODELS["llama-tiny"].make(sizes)


def test_a_model_without_tokens_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"model_type": "vit", "architectures": ["ViTForImageClassification"]})
    )
    with pytest.raises(PlanError, match=r"takes pixel_values, .*: plan it by FILE\.py:FUNCTION"):
        from_config(path).make({"batch": 1, "sequence": 1, "n_layers": 1})


def test_a_class_that_transformers_does_not_have_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForPoetry"]}))
    with pytest.raises(PlanError, match="has no model LlamaForPoetry"):
        from_config(path).make({"batch": 1, "sequence": 1})
