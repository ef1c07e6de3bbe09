"""Replacements for functions whose C++ code reads lengths: `nn.utils.rnn`, `tensor_split`.

The C++ code reads values of a tensor past everything that watches a capture, so that the program
would keep those of its first call. While a step is captured, the replacements read the lengths
instead. They have to be known before the step runs, and become guards. Then the function is called
with Python numbers, or written in operators whose shapes follow from these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

from frontends.torch.base.compat.values import constant, known_number

Tensor = torch.Tensor
_VF: Any = torch._VF
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@contextmanager
def watched() -> Iterator[None]:
    """Inside, lengths that these functions get become guards."""
    replaced: dict[str, Callable[..., Any]] = {
        "_pack_padded_sequence": _packed,
        "_pad_packed_sequence": _padded,
        "tensor_split": _split(torch.tensor_split),
        **{name: _recurrent(getattr(_VF, name)) for name in _RECURRENT},
    }
    with ExitStack() as stack:
        for name, instead in replaced.items():
            for owner in (torch, _VF):
                if hasattr(owner, name):
                    stack.enter_context(mock.patch.object(owner, name, instead))
        split = _split(Tensor.tensor_split)
        stack.enter_context(mock.patch.object(Tensor, "tensor_split", split))
        yield


def _numbers(tensor: Tensor) -> list[int]:
    """Return the numbers of a tensor of one dim.

    Raises:
        GuardOnDataDependentSymNode: They are not known before the step runs.
    """
    return [known_number(each.item()) for each in tensor.detach().unbind(0)]


def _recurrent(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement for a recurrent layer, which has packed data if sizes come second."""

    def call(*args: Any) -> Any:
        is_packed = len(args) > 3 and isinstance(args[3], list | tuple)
        if is_packed and isinstance(args[1], Tensor):
            args = (args[0], constant(_numbers(args[1])), *args[2:])
        return original(*args)

    return call


def _packed(values: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """Return packed sequences: the time steps one after another, and the sequences in each.

    Args:
        values: Shape (steps, sequences, ...), or (sequences, steps, ...).
        lengths: The lengths of the sequences, in descending order.
        batch_first: Whether sequences are the first dim.
    """
    sizes = _numbers(lengths)
    if batch_first:
        values = values.transpose(0, 1)
    if len(sizes) != values.shape[1] or sizes != sorted(sizes, reverse=True) or sizes[-1] < 1:
        raise RuntimeError(
            "lengths of sequences to be packed are in descending order and at least 1, one for "
            f"each of {values.shape[1]} sequences; got {sizes}"
        )
    if sizes[0] > values.shape[0]:
        raise RuntimeError(f"a sequence is no longer than {values.shape[0]} steps; got {sizes[0]}")
    counts = [sum(size > step for size in sizes) for step in range(sizes[0])]
    rows = [values[step, :count] for step, count in enumerate(counts)]
    return torch.cat(rows), constant(counts)


def _padded(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[Tensor, Tensor]:
    """Return the sequences of packed data, padded, and their lengths: the inverse of `_packed`."""
    counts = _numbers(batch_sizes)
    n_steps = len(counts) if total_length <= 0 else total_length
    if n_steps < len(counts):
        raise RuntimeError(
            f"total_length is at least the longest sequence's, {len(counts)}; got {total_length}"
        )
    rest = [0, 0] * (data.dim() - 1)
    steps: list[Tensor] = [
        functional.pad(part, [*rest, 0, counts[0] - len(part)], value=padding_value)
        for part in torch.split(data, counts)
    ]
    empty = data.new_full((counts[0], *data.shape[1:]), padding_value)
    padded = torch.stack(steps + [empty] * (n_steps - len(counts)), 1 if batch_first else 0)
    lengths = [sum(count > place for count in counts) for place in range(counts[0])]
    return padded, constant(lengths)


def _split(original: Callable[..., Sequence[Tensor]]) -> Callable[..., Sequence[Tensor]]:
    """Return a replacement for `tensor_split`, whose indices may be a tensor."""

    def call(*args: Any, **named: Any) -> Sequence[Tensor]:
        if "tensor_indices_or_sections" in named:
            args = (*args, named.pop("tensor_indices_or_sections"))
        if len(args) > 1 and isinstance(args[1], Tensor):
            known = _numbers(args[1].reshape(-1))
            args = (args[0], known if args[1].dim() else known[0], *args[2:])
        return original(*args, **named)

    return call
