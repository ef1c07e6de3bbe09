"""Lengths that PyTorch reads in memory: sequences packed by `nn.utils.rnn`, and `tensor_split`.

These functions are C++ that looks at numbers of a tensor past everything that watches a capture, so
that the program would keep those of its first call. While a step is captured, the numbers are asked
for here: known before the step runs, they are guards, and the function is done with numbers of
Python's, or in operators whose shapes follow from them.
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
    """Let lengths that a function is given be guards."""
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
    """Of a tensor of one dim.

    Raises:
        GuardOnDataDependentSymNode: They are not known before the step runs.
    """
    return [known_number(each.item()) for each in tensor.detach().unbind(0)]


def _recurrent(original: Callable[..., Any]) -> Callable[..., Any]:
    """A recurrent layer, which is called with packed data if a tensor of sizes comes second."""

    def call(*args: Any) -> Any:
        is_packed = len(args) > 3 and isinstance(args[3], list | tuple)
        if is_packed and isinstance(args[1], Tensor):
            args = (args[0], constant(_numbers(args[1])), *args[2:])
        return original(*args)

    return call


def _packed(values: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """The steps of all sequences, one after another, and how many sequences have each.

    Args:
        values: Of shape (steps, sequences, ...), or (sequences, steps, ...).
        lengths: Of the sequences, which do not grow.
        batch_first: Whether sequences are the first dim.
    """
    sizes = _numbers(lengths)
    if batch_first:
        values = values.transpose(0, 1)
    if len(sizes) != values.shape[1] or sizes != sorted(sizes, reverse=True) or sizes[-1] < 1:
        raise RuntimeError(
            "lengths of sequences that are packed do not grow and are at least 1, one for each of "
            f"{values.shape[1]} sequences; got {sizes}"
        )
    if sizes[0] > values.shape[0]:
        raise RuntimeError(f"a sequence is no longer than {values.shape[0]} steps; got {sizes[0]}")
    counts = [sum(size > step for size in sizes) for step in range(sizes[0])]
    rows = [values[step, :count] for step, count in enumerate(counts)]
    return torch.cat(rows), constant(counts)


def _padded(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[Tensor, Tensor]:
    """The opposite of `_packed`: the sequences, filled up, and their lengths."""
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
    """`tensor_split`, whose places may be a tensor."""

    def call(*args: Any, **named: Any) -> Sequence[Tensor]:
        if "tensor_indices_or_sections" in named:
            args = (*args, named.pop("tensor_indices_or_sections"))
        if len(args) > 1 and isinstance(args[1], Tensor):
            known = _numbers(args[1].reshape(-1))
            args = (args[0], known if args[1].dim() else known[0], *args[2:])
        return original(*args, **named)

    return call
