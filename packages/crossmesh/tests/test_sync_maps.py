"""Maps for engines, against loaders of weights written the way the engines write theirs.

A loader takes each published tensor as a whole and copies what its rank has of it into a fused
parameter. Names and shapes are those of the public checkpoints and engines, at small sizes.
"""

import numpy as np
import pytest
import torch
from crossmesh import PlanError
from crossmesh.sync.buffers import copied_to
from crossmesh.sync.convert import scales_of
from crossmesh.sync.maps import engine
from crossmesh.sync.states import checked
from crossmesh.sync.views import Published

HIDDEN, HEAD, EXPERTS = 8, 2, 4


def attention(path, heads, kv_heads, *, norms=False, bias=False):
    rows = {"q_proj": heads * HEAD, "k_proj": kv_heads * HEAD, "v_proj": kv_heads * HEAD}
    shapes = {f"{path}.{name}.weight": (n, HIDDEN) for name, n in rows.items()}
    shapes |= {f"{path}.{name}.bias": (n,) for name, n in rows.items() if bias}
    shapes[f"{path}.o_proj.weight"] = (HIDDEN, heads * HEAD)
    if norms:
        shapes |= {f"{path}.{name}.weight": (HEAD,) for name in ("q_norm", "k_norm")}
    return shapes


def dense(path, inner):
    return {
        f"{path}.gate_proj.weight": (inner, HIDDEN),
        f"{path}.up_proj.weight": (inner, HIDDEN),
        f"{path}.down_proj.weight": (HIDDEN, inner),
    }


def ends(vocabulary, *, tied=False):
    shapes = {"model.embed_tokens.weight": (vocabulary, HIDDEN), "model.norm.weight": (HIDDEN,)}
    return shapes if tied else shapes | {"lm_head.weight": (vocabulary, HIDDEN)}


L = "model.layers.0"
NORMS = {
    f"{L}.{name}.weight": (HIDDEN,) for name in ("input_layernorm", "post_attention_layernorm")
}
MODELS = {
    "llama": attention(f"{L}.self_attn", 8, 4) | dense(f"{L}.mlp", 16) | NORMS | ends(32),
    "qwen2": attention(f"{L}.self_attn", 8, 2, bias=True)
    | dense(f"{L}.mlp", 16)
    | NORMS
    | ends(30, tied=True),
    "qwen3": attention(f"{L}.self_attn", 8, 4, norms=True)
    | dense(f"{L}.mlp", 16)
    | NORMS
    | ends(32),
    "qwen3-moe": attention(f"{L}.self_attn", 8, 4, norms=True)
    | {f"{L}.mlp.gate.weight": (EXPERTS, HIDDEN)}
    | {k: v for e in range(EXPERTS) for k, v in dense(f"{L}.mlp.experts.{e}", 8).items()}
    | NORMS
    | ends(32),
    "qwen3-moe-stacked": attention(f"{L}.self_attn", 8, 4, norms=True)
    | {
        f"{L}.mlp.gate.weight": (EXPERTS, HIDDEN),
        f"{L}.mlp.experts.gate_up_proj": (EXPERTS, 16, HIDDEN),
        f"{L}.mlp.experts.down_proj": (EXPERTS, HIDDEN, 8),
    }
    | NORMS
    | ends(32),
    "mixtral": attention(f"{L}.self_attn", 8, 4)
    | {f"{L}.block_sparse_moe.gate.weight": (EXPERTS, HIDDEN)}
    | {
        f"{L}.block_sparse_moe.experts.{e}.{w}.weight": (HIDDEN, 8) if w == "w2" else (8, HIDDEN)
        for e in range(EXPERTS)
        for w in ("w1", "w2", "w3")
    }
    | NORMS
    | ends(32),
    "deepseek": {
        f"{L}.self_attn.q_a_proj.weight": (6, HIDDEN),
        f"{L}.self_attn.q_a_layernorm.weight": (6,),
        f"{L}.self_attn.q_b_proj.weight": (16, 6),
        f"{L}.self_attn.kv_a_proj_with_mqa.weight": (5, HIDDEN),
        f"{L}.self_attn.kv_a_layernorm.weight": (4,),
        f"{L}.self_attn.kv_b_proj.weight": (24, 4),
        f"{L}.self_attn.o_proj.weight": (HIDDEN, 16),
        f"{L}.mlp.gate.weight": (EXPERTS, HIDDEN),
        f"{L}.mlp.gate.e_score_correction_bias": (EXPERTS,),
    }
    | {k: v for e in range(EXPERTS) for k, v in dense(f"{L}.mlp.experts.{e}", 8).items()}
    | dense(f"{L}.mlp.shared_experts", 8)
    | NORMS
    | ends(32),
}
COLUMN = ("q_b_proj", "kv_b_proj", "lm_head", "embed_tokens")
ROW = ("o_proj", "down_proj")
IN_FUSED = {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"} | dict.fromkeys(
    ("q_proj", "k_proj", "v_proj"), "qkv_proj"
)
LATENT = {"q_a_proj": "fused_qkv_a_proj", "kv_a_proj_with_mqa": "fused_qkv_a_proj"}


def loaded(weights, rank, size, experts=(0, 1)):
    """What the loader of an engine makes of a checkpoint, on one rank with tensor parallelism."""
    parts = {}

    def cut(value, dim):
        length = -(-value.shape[dim] // size)
        out = np.zeros([length if d == dim else n for d, n in enumerate(value.shape)], value.dtype)
        own = np.split(value, [rank * length, (rank + 1) * length], dim)[1]
        out[tuple(slice(n) for n in own.shape)] = own
        return out

    own_experts = np.array_split(range(EXPERTS), experts[1])[experts[0]].tolist()
    for name, value in weights.items():
        path, _, tail = name.rpartition(".")
        around, _, module = path.rpartition(".")
        if tail == "gate_up_proj":
            gate, up = np.split(value[own_experts], 2, 1)
            parts[f"{path}.w13_weight"] = [np.concatenate([cut(gate, 1), cut(up, 1)], 1)]
        elif tail == "down_proj":
            parts[f"{path}.w2_weight"] = [cut(value[own_experts], 2)]
        elif ".experts." in name:
            group, expert = around.rsplit(".", 1)
            if int(expert) not in own_experts:
                continue
            if module in ("down_proj", "w2"):
                parts.setdefault(f"{group}.w2_weight", []).append(cut(value, 1)[None])
            else:
                place = parts.setdefault(f"{group}.w13_weight", [])
                order = int(module in ("up_proj", "w3"))
                place.append((int(expert), order, cut(value, 0)))
        elif module in LATENT:
            parts.setdefault(f"{around}.{LATENT[module]}.{tail}", []).append(value)
        elif module in IN_FUSED:
            n = value.shape[0] // HEAD
            repeats = size // n if module in ("k_proj", "v_proj") and n < size else 0
            own = value.reshape(n, HEAD, -1)[rank // repeats] if repeats else cut(value, 0)
            own = own.reshape(-1) if value.ndim == 1 else own.reshape(-1, value.shape[1])
            parts.setdefault(f"{around}.{IN_FUSED[module]}.{tail}", []).append(own)
        elif module in COLUMN:
            parts[name] = [cut(value, 0)]
        elif module in ROW:
            parts[name] = [cut(value, 1)]
        else:
            parts[name] = [value]
    if "lm_head.weight" not in parts:
        parts["lm_head.weight"] = parts["model.embed_tokens.weight"]
    made = {}
    for name, values in parts.items():
        if name.endswith("w13_weight") and isinstance(values[0], tuple):
            of_expert = {}
            for expert, order, value in values:
                of_expert.setdefault(expert, {})[order] = value
            made[name] = np.stack(
                [np.concatenate([two[0], two[1]]) for _, two in sorted(of_expert.items())]
            )
        else:
            made[name] = np.concatenate(values)
    return made


def filled(weights, own, weight_map):
    """The tensors of a rank, filled by the views of a map."""
    published = Published(
        {name: value.shape for name, value in weights.items()},
        {name: str(value.dtype) for name, value in weights.items()},
    )
    targets = {name: torch.zeros(value.shape, dtype=torch.int64) for name, value in own.items()}
    for name, view in weight_map(published, checked(targets)).items():
        assert view.shape == tuple(targets[name].shape)
        for read in view.reads:
            place = tuple(slice(start, stop) for start, stop in read.at)
            copied_to(targets[name], read, torch.from_numpy(weights[read.source])[place], read.at)
    return targets


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("model", ["llama", "qwen3-moe", "qwen3-moe-stacked", "deepseek"])
@pytest.mark.parametrize(("ending", "dtype"), [("_scale", "int8"), ("_scale_inv", "float8_e4m3fn")])
def test_weights_are_quantized_as_whole_and_then_loaded(model, size, ending, dtype):
    weights = {
        name: torch.from_numpy(value).float() for name, value in random_weights(model).items()
    }
    elements, scales = {}, {}
    for name, value in weights.items():
        if value.ndim > 1:
            scales[name] = scales_of(value.abs().amax(-1, keepdim=True), dtype)
            ratio = value / scales[name]
            elements[name] = (ratio.round() if dtype == "int8" else ratio).to(getattr(torch, dtype))
    plain = {name: value.view(torch.uint8).numpy() for name, value in elements.items()}
    for rank in range(size):
        expected = {
            name: value
            for name, value in loaded(plain, rank, size).items()
            if "proj" in name or "experts" in name
        }
        targets = {
            name: torch.zeros(value.shape, dtype=getattr(torch, dtype))
            for name, value in expected.items()
        }
        rows_alone = {name: value.shape[:-1] for name, value in expected.items()}
        targets |= {name + ending: torch.zeros(*shape, 1) for name, shape in rows_alone.items()}
        published = Published(
            {name: tuple(value.shape) for name, value in weights.items()},
            dict.fromkeys(weights, "float32"),
        )
        views = engine(rank, size, block=(1, None))(published, checked(targets))
        for name, view in views.items():
            for read in view.reads:
                whole = (scales if read.encoding.scales else elements)[read.source]
                place = tuple(slice(start, stop) for start, stop in read.at)
                copied_to(targets[name], read, whole[place], read.at)
        for name, value in expected.items():
            np.testing.assert_array_equal(targets[name].view(torch.uint8).numpy(), value, name)
        in_one_row = {
            name: value
            for name, value in loaded(
                {n: v.expand(weights[n].shape).numpy() for n, v in scales.items()}, rank, size
            ).items()
            if name in expected
        }
        for name, value in in_one_row.items():
            np.testing.assert_array_equal(targets[name + ending].numpy(), value[..., :1], name)


def test_what_a_trainer_has_fused_is_cut_part_by_part():
    weights = {
        "mlp.gate_up_proj.weight": np.arange(8).reshape(8, 1),
        "moe.experts.w13_weight": np.arange(16).reshape(2, 8, 1),
        "a.qkv_proj.weight": np.arange(8).reshape(8, 1),
    }
    own = {
        "mlp.gate_up_proj.weight": np.zeros((4, 1)),
        "moe.experts.w13_weight": np.zeros((2, 4, 1)),
    }
    found = filled(weights, own, engine(1, 2))
    assert found["mlp.gate_up_proj.weight"].flatten().tolist() == [2, 3, 6, 7]
    assert found["moe.experts.w13_weight"].flatten().tolist() == [2, 3, 6, 7, 10, 11, 14, 15]
    with pytest.raises(PlanError, match="how many rows of a fused projection are queries"):
        filled(weights, {"a.qkv_proj.weight": np.zeros((4, 1))}, engine(1, 2))
    same = {"a.qkv_proj.weight": np.zeros((8, 1))}
    assert filled(weights, same, engine())["a.qkv_proj.weight"].flatten().tolist() == [*range(8)]


@pytest.mark.parametrize(
    ("here", "there"), [("block_sparse_moe", "mlp"), ("mlp", "block_sparse_moe")]
)
def test_mixtral_has_its_experts_in_either_module(here, there):
    weights = random_weights("mixtral")
    weights = {name.replace("block_sparse_moe", there): v for name, v in weights.items()}
    expected = {name.replace(there, here): value for name, value in loaded(weights, 0, 2).items()}
    for name, value in filled(weights, expected, engine(0, 2)).items():
        np.testing.assert_array_equal(value.numpy(), expected[name], name)


def test_blocks_of_deepseek_have_a_scale_each():
    published = Published({"a.q_b_proj.weight": (512, 300)}, {"a.q_b_proj.weight": "bfloat16"})
    own = {
        "a.q_b_proj.weight": torch.zeros(256, 300, dtype=torch.float8_e4m3fn),
        "a.q_b_proj.weight_scale_inv": torch.zeros(2, 3),
    }
    views = engine(1, 2)(published, checked(own))
    assert views["a.q_b_proj.weight"].reads[0].at == ((256, 512), (0, 300))
    assert views["a.q_b_proj.weight_scale_inv"].reads[0].at == ((2, 4), (0, 3))
    already = Published(
        {"q.weight": (4, 4), "q.weight_scale": (4, 1)},
        {"q.weight": "int8", "q.weight_scale": "float32"},
    )
    own = {"q.weight": torch.zeros(4, 4, dtype=torch.int8), "q.weight_scale": torch.zeros(4, 1)}
    for name, view in engine()(already, checked(own)).items():
        assert view == already[name]


def random_weights(model):
    generator = np.random.default_rng(0)
    return {name: generator.integers(1, 10**6, shape) for name, shape in MODELS[model].items()}


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("model", MODELS)
def test_every_rank_has_what_its_loader_makes(model, size):
    weights = random_weights(model)
    for rank in range(size):
        expected = loaded(weights, rank, size)
        for name, found in filled(weights, expected, engine(rank, size)).items():
            np.testing.assert_array_equal(found.numpy(), expected[name], err_msg=name)


@pytest.mark.parametrize("model", ["qwen3-moe", "qwen3-moe-stacked", "mixtral", "deepseek"])
def test_experts_are_cut_over_ranks(model):
    weights = random_weights(model)
    for rank in range(2):
        expected = loaded(weights, 0, 1, experts=(rank, 2))
        found = filled(weights, expected, engine(expert_rank=rank, expert_size=2))
        for name, value in found.items():
            np.testing.assert_array_equal(value.numpy(), expected[name], err_msg=name)


def test_blocks_that_parts_cut_are_refused():
    sizes = {"m.gate_proj.weight": (96, 128), "m.up_proj.weight": (96, 128)}
    published = Published(sizes, dict.fromkeys(sizes, "float32"))
    own = {
        "m.gate_up_proj.weight": torch.zeros(192, 128, dtype=torch.float8_e4m3fn),
        "m.gate_up_proj.weight_scale_inv": torch.zeros(2, 1),
    }
    with pytest.raises(PlanError, match=r"at 0 of 'm.up_proj.weight' and at 96 of its own.*of 128"):
        engine()(published, checked(own))
    published = Published({"m.down_proj.weight": (192, 128)}, {"m.down_proj.weight": "float32"})
    own = {"m.down_proj.weight": torch.zeros(96, 128, dtype=torch.float8_e4m3fn)}
    with pytest.raises(PlanError, match=r"begins at 96 of 'm.down_proj.weight' and at 0"):
        engine(1, 2)(published, checked(own))


@pytest.mark.parametrize(("own", "size"), [((64,), 1), ((48, 64), 1), ((12, 48), 8)])
def test_only_a_vocabulary_is_padded(own, size):
    weights = {"norm.weight": np.zeros(48), "m.down_proj.weight": np.zeros((48, 48))}
    name = "norm.weight" if len(own) == 1 else "m.down_proj.weight"
    with pytest.raises(PlanError, match=f"each of {size} ranks has the whole"):
        filled(weights, {name: np.zeros(own)}, engine(0, size))


def test_rows_beyond_the_vocabulary_are_zeros():
    weights = {"model.embed_tokens.weight": np.arange(1, 61).reshape(30, 2)}
    own = {"model.embed_tokens.weight": np.zeros((16, 2)), "lm_head.weight": np.zeros((16, 2))}
    for name, found in filled(weights, own, engine(1, 2)).items():
        assert found[:14].tolist() == weights["model.embed_tokens.weight"][16:].tolist(), name
        assert not found[14:].any()


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("a.qkv_proj.weight", (7, 8), {}, r"fill a fused projection; got \(7, 8\)"),
        ("a.q_proj.weight", (3, 8), {"rank": 0, "size": 2}, r"each of 2 ranks.*got \(3, 8\)"),
        ("a.q_proj.weight", (8, 4), {}, r"got \(8, 4\) for 'a.q_proj.weight', of \(16, 8\)"),
        ("b.gate_up_proj.weight", (8, 8), {}, "got 'b.gate_proj.weight'; published are"),
        ("a.lm_head.weight", (8, 8), {}, "got 'a.lm_head.weight'; published are"),
        ("m.experts.w2_weight", (3,), {}, r"have three dims.*got \(3,\) for 'm.experts.w2_weight'"),
        ("m.experts.w2_weight", (3, 8, 8), {}, "got 'm.experts.0.down_proj.weight'"),
    ],
)
def test_says_what_it_cannot_map(name, shape, options, message):
    published = attention("a", 8, 4)
    weights = {name: np.zeros(shape) for name, shape in published.items()}
    with pytest.raises(PlanError, match=message):
        filled(weights, {name: np.zeros(shape)}, engine(**options))


@pytest.mark.parametrize("options", [{"rank": 2, "size": 2}, {"expert_rank": -1}])
def test_a_rank_is_below_its_size(options):
    with pytest.raises(PlanError, match="a rank is from 0 to its size - 1"):
        engine(**options)
