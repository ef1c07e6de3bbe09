"""The loss of connectionist temporal classification, as `functional.ctc_loss` computes it.

PyTorch's operator passes to its gradient a table whose size depends on the longest target, a number
that is not known before the step runs. A step calls `meshwright::ctc` instead, which returns the
loss only, and `meshwright::ctc_gradient`, which computes the table again. So no shape depends on
the lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from autoshard import Rule, labelled, whole

from frontends.torch.base.described import Described

aten = torch.ops.aten
Tensor = torch.Tensor

_GIVEN = "Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths"
_SETTINGS = "int blank, bool zero_infinity"

torch.library.define("meshwright::ctc", f"({_GIVEN}, {_SETTINGS}) -> Tensor")
torch.library.define("meshwright::ctc_gradient", f"(Tensor grad, {_GIVEN}, {_SETTINGS}) -> Tensor")


@torch.library.impl("meshwright::ctc", "CompositeExplicitAutograd")
def _loss(log_probs: Tensor, *arguments: Any) -> Tensor:
    loss: Tensor = aten._ctc_loss.Tensor(log_probs, *arguments)[0]
    return loss


@torch.library.impl("meshwright::ctc_gradient", "CompositeExplicitAutograd")
def _gradient(gradient: Tensor, log_probs: Tensor, *arguments: Any) -> Tensor:
    *targets_and_lengths, blank, zero_infinity = arguments
    loss, table = aten._ctc_loss.Tensor(log_probs, *arguments)
    result: Tensor = aten._ctc_loss_backward.Tensor(
        gradient, log_probs, *targets_and_lengths, loss, table, blank, zero_infinity
    )
    return result


@torch.library.register_fake("meshwright::ctc")  # type: ignore[untyped-decorator]
def _shaped(log_probs: Tensor, *arguments: Any) -> Tensor:
    return log_probs.new_empty(log_probs.shape[1])


@torch.library.register_fake("meshwright::ctc_gradient")  # type: ignore[untyped-decorator]
def _shaped_gradient(gradient: Tensor, log_probs: Tensor, *arguments: Any) -> Tensor:
    return log_probs.new_empty(log_probs.shape)


def ctc(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> Any:
    """Decomposition of `aten._ctc_loss`; the table that it returns is empty."""
    lengths = map(_lengths, (input_lengths, target_lengths))
    loss = torch.ops.meshwright.ctc(log_probs, targets, *lengths, blank, zero_infinity)
    return loss, log_probs.new_zeros(0)


def ctc_gradient(
    gradient: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    loss: Tensor,
    table: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Any:
    """Decomposition of `aten._ctc_loss_backward`."""
    lengths = map(_lengths, (input_lengths, target_lengths))
    return torch.ops.meshwright.ctc_gradient(
        gradient, log_probs, targets, *lengths, blank, zero_infinity
    )


def _lengths(lengths: Tensor | Sequence[int]) -> Tensor:
    return lengths if isinstance(lengths, Tensor) else torch.tensor(list(lengths))


def rule(d: Described) -> Rule:
    """Return the rule: examples are parallel, unless all targets are concatenated in one dim."""
    targets = d.operands[-3]
    if len(targets) == 1:
        return whole(d.operands, d.results)
    operands = "tnc,nl,n,n"
    formula = f"n,{operands}->tnc" if len(d.operands) == 5 else f"{operands}->n"
    return labelled(formula, d.operands, d.results, whole="tcl")


def flops(d: Described) -> float:
    """Return the FLOP: a few for each pair of a time step and a letter or a blank beside it."""
    n_steps, n_examples, _ = d.operands[-4]
    n_letters = d.operands[-3][-1]
    per_letter = 6.0  # two sums of exponentials, for the letter and for the blank [counted]
    return per_letter * n_steps * n_examples * (2 * n_letters + 1)
