"""Training steps (forward, backward, optimizer) written as graphs, for tests and benchmarks."""

from autoshard.programs.block import block_step
from autoshard.programs.gpt import gpt_step
from autoshard.programs.llama import llama_step
from autoshard.programs.mlp import deep_mlp_step, mlp_step
from autoshard.programs.moe import moe_step
from autoshard.programs.program import StepBuilder, join_phases, step_flops
from autoshard.programs.transformer import transformer_step
from autoshard.programs.vgg import vgg13_step

__all__ = [
    "StepBuilder",
    "block_step",
    "deep_mlp_step",
    "gpt_step",
    "join_phases",
    "llama_step",
    "mlp_step",
    "moe_step",
    "step_flops",
    "transformer_step",
    "vgg13_step",
]
