"""Runs regions of programs as compiled functions.

How tensors lie in memory is known when a region has run. So regions run call by call in the first
steps, note the forms of their operands, and are compiled for these between two steps, while no
process waits for another within a step. A region that meets operands of other forms later runs call
by call.

Equal regions share a compiled function, in all steps of a process. Inductor keeps what it compiled
on disk, for other processes and later runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any

import torch

from frontends.base.boundary import first_line
from frontends.base.present import present
from frontends.torch.base.calls import Tensor
from frontends.torch.base.compat.inductor import Form, compiled
from frontends.torch.base.tracing import traced_alone
from frontends.torch.capture.guards import flags
from frontends.torch.lower.local import Coordinates
from frontends.torch.lower.nodes import Compute, Region
from frontends.torch.lower.number_operands import has_number_operands, on_tensors
from frontends.torch.lower.regions import key_of
from frontends.torch.run.operator_error import OperatorError

Compiled = Callable[..., Sequence[Tensor]]
Tell = Callable[[str, int, int], None]
"""Called with what is done, how much of it is done, and how much there is to do."""

N_ROUNDS = 3
"""After how many steps regions are compiled: the first may see state as the user laid it."""

_MOST = 4096
_functions: dict[Hashable, Compiled | None] = {}
"""What this process compiled; None for what Inductor refused."""

_UNCHECKED = frozenset({"index_select", "index_add", "index_copy"})
"""Operators that refuse negative indices, which Inductor counts from the end."""


def can_compile(node: Compute, dtypes: Sequence[torch.dtype]) -> bool:
    """Return whether a call may be part of a region, given the types of its operands."""
    call = node.plain
    if call is None:
        return True
    if call.name.removesuffix("_") in _UNCHECKED:
        return False
    return not has_number_operands(call) or on_tensors(call, dtypes) is not None


class RegionRunner:
    """A region on one device.

    Args:
        region: The region.
        coordinates: The coordinates of the device in the stage's mesh.
    """

    def __init__(self, region: Region, coordinates: Coordinates) -> None:
        self._region, self._coordinates = region, coordinates
        self._by_forms: dict[tuple[Any, ...], Compiled | None] = {}
        """By the strides of the operands, the function to run; None to run call by call."""

        self.wanted: dict[tuple[Any, ...], list[Form]] = {}
        """By strides, the forms of operands to compile for."""

    def __repr__(self) -> str:
        first, last = self._region.nodes[0].name, self._region.nodes[-1].name
        return f"<RegionRunner: {len(self._region.nodes)} calls from {first} to {last}>"

    @property
    def is_compiled(self) -> bool:
        """Whether it runs a compiled function for all operands that it has met."""
        return not self.wanted and all(self._by_forms.values())

    def __call__(self, operands: list[Tensor]) -> Sequence[Tensor]:
        """Run the region.

        Args:
            operands: The device's shards, in the order of the region's operands.

        Returns:
            The shards of the region's results.

        Raises:
            OperatorError: A call fails.
        """
        strides = tuple(tensor.stride() for tensor in operands)
        function = self._by_forms.get(strides)
        if function is None:
            if strides not in self._by_forms:
                self.wanted[strides] = [
                    (tuple(t.shape), stride, t.dtype, t.device)
                    for t, stride in zip(operands, strides, strict=True)
                ]
            return self._through(operands, self._call)
        try:
            return function(*operands)
        except Exception as error:
            self._through([operand.clone() for operand in operands], self._call)  # to find it
            raise OperatorError(self._region.nodes[0], error) from error

    def _through(
        self,
        operands: Sequence[Tensor],
        run: Callable[[Compute, list[Tensor]], list[Tensor]],
    ) -> list[Tensor]:
        """Run each call; return the results of the region."""
        region = self._region
        values = dict(zip(region.operands, operands, strict=True))
        for node in region.nodes:
            results = run(node, [values[register] for register in node.operands])
            values.update(zip(node.results, results, strict=True))
        return [values[register] for register in region.results]

    def _call(self, node: Compute, operands: list[Tensor]) -> list[Tensor]:
        try:
            return node.call(operands, self._coordinates)
        except Exception as error:
            raise OperatorError(node, error) from error

    def _call_on_tensors(self, node: Compute, operands: list[Tensor]) -> list[Tensor]:
        if node.plain is not None and has_number_operands(node.plain):
            compute = on_tensors(node.plain, [operand.dtype for operand in operands])
            return present(compute, "can_compile asked for it")(operands)
        return node.call(operands, self._coordinates)

    @cached_property
    def _key(self) -> Hashable:
        is_alike = all(node.plain is not None for node in self._region.nodes)
        return key_of(self._region), () if is_alike else self._coordinates

    def key(self, forms: Sequence[Form]) -> Hashable:
        """Return a key that is equal for regions which a compiled function can stand for."""
        return self._key, tuple(forms), torch.get_num_threads(), flags()

    def compile(self, forms: Sequence[Form]) -> Compiled:
        """Return the compiled region.

        Raises:
            Exception: Inductor refuses it, with an error of any type.
        """
        return compiled(lambda tensors: self._through(tensors, self._call_on_tensors), forms)

    def use(self, strides: tuple[Any, ...], function: Compiled | None) -> None:
        """Set what to run for operands with these strides."""
        self._by_forms[strides] = function


def compile_all(runners: Sequence[RegionRunner], tell: Tell) -> None:
    """Compile what the regions of a process want, equal ones once.

    Args:
        runners: All regions of the process.
        tell: Reports progress.
    """
    wanted: dict[Hashable, list[tuple[RegionRunner, tuple[Any, ...]]]] = {}
    for runner in runners:
        for strides, forms in runner.wanted.items():
            wanted.setdefault(runner.key(forms), []).append((runner, strides))
    with traced_alone():
        found = {key: _functions[key] for key in wanted if key in _functions}
        missing = [key for key in wanted if key not in found]
        refused: dict[str, list[RegionRunner]] = {}
        for done, key in enumerate(missing):
            tell("compiling", done, len(missing))
            runner, strides = wanted[key][0]
            try:
                found[key] = runner.compile(runner.wanted[strides])
            except Exception as error:
                found[key] = None
                reason = f"{type(error).__name__}: {first_line(error)}"
                refused.setdefault(reason, []).extend(user for user, _ in wanted[key])
            while len(_functions) >= _MOST:
                del _functions[next(iter(_functions))]
            _functions[key] = found[key]
    if missing:
        tell("compiling", len(missing), len(missing))
    for key, users in wanted.items():
        for runner, strides in users:
            runner.use(strides, found[key])
            del runner.wanted[strides]
    for reason, those in refused.items():
        print(
            f"meshwright: {len(those)} of {len(runners)} compiled regions run call by call, such "
            f"as {those[0]!r}, as Inductor refuses them: {reason}",
            file=sys.stderr,
        )
