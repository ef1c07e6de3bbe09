"""Mixed precision as a policy of modules, in the words of FSDP2.

Weights and the optimizer's state keep their type, usually float32, and are sharded in it; each step
converts a module's weights, and computes with these. The conversion is an operator of the step, so
that a plan gathers weights, and reduces gradients, in the type that is smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils import _pytree as pytree

from frontends.errors import PlanError
from frontends.torch.base.calls import Tensor

Precision = MixedPrecisionPolicy | Mapping[str, MixedPrecisionPolicy]
"""A policy for the whole model, or policies by name of a module, in which `*` is any text."""

Loss = Callable[[nn.Module, Any], Tensor]


def in_precision(loss_fn: Loss, model: nn.Module, precision: Precision) -> Loss:
    """Return a loss that computes with weights of other types than they are kept in.

    A policy holds for the modules within its module, too, except for those that have their own:
    the last one in the mapping that fits a name. As in FSDP2, floating point inputs of a module
    with a policy are converted to `param_dtype` unless `cast_forward_inputs` is off, and its
    outputs to `output_dtype` if there is one. Buffers keep their types.

    Args:
        loss_fn: The loss.
        model: The model.
        precision: The policy, or policies by names of modules, with "" for the model itself.

    Raises:
        PlanError: A name fits no module; or gradients are to be reduced in another type than
            `param_dtype`.
    """
    policies = precision if isinstance(precision, Mapping) else {"": precision}
    of_module: dict[str, MixedPrecisionPolicy] = {}
    for pattern, policy in policies.items():
        _check(pattern, policy)
        names = [name for name, _ in model.named_modules() if fnmatchcase(name, pattern)]
        if not names:
            known = ", ".join(name for name, _ in list(model.named_modules())[1:4])
            raise PlanError(
                f"a policy is for the modules that its name fits; {pattern!r} fits none of the "
                f"model's, such as {known}"
            )
        of_module |= dict.fromkeys(names, policy)

    def policy_of(name: str) -> MixedPrecisionPolicy | None:
        while name not in of_module and name:
            name = name.rpartition(".")[0]
        return of_module.get(name)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        weights = {}
        for name, weight in model.named_parameters(remove_duplicate=False):
            policy = policy_of(name.rpartition(".")[0])
            dtype = None if policy is None else policy.param_dtype
            if dtype is not None and weight.is_floating_point():
                weights[f"model.{name}"] = weight.to(dtype)
        with ExitStack() as hooks:
            for name, policy in of_module.items():
                module = model.get_submodule(name)
                if policy.cast_forward_inputs and policy.param_dtype is not None:
                    cast = _cast_inputs(policy.param_dtype)
                    handle = module.register_forward_pre_hook(cast, with_kwargs=True)
                    hooks.callback(handle.remove)
                if policy.output_dtype is not None:
                    handle = module.register_forward_hook(_cast_outputs(policy.output_dtype))
                    hooks.callback(handle.remove)
            result: Tensor = torch.func.functional_call(
                _WithLoss(model, loss_fn), weights, (batch,)
            )
            return result

    return loss


class _WithLoss(nn.Module):
    """A model and its loss, as a module that may be called with other weights."""

    def __init__(self, model: nn.Module, loss_fn: Loss) -> None:
        super().__init__()
        self.model, self._loss_fn = model, loss_fn

    def forward(self, batch: Any) -> Tensor:
        return self._loss_fn(self.model, batch)


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    def one(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return pytree.tree_map_only(Tensor, one, tree)


def _cast_inputs(dtype: torch.dtype) -> Callable[..., Any]:
    return lambda module, args, kwargs: (_cast(args, dtype), _cast(kwargs, dtype))


def _cast_outputs(dtype: torch.dtype) -> Callable[..., Any]:
    return lambda module, args, output: _cast(output, dtype)


def _check(name: str, policy: object) -> None:
    if not isinstance(policy, MixedPrecisionPolicy):
        raise PlanError(
            "precision is a torch.distributed.fsdp.MixedPrecisionPolicy, or a mapping from names "
            f"of modules to these; got {policy!r}"
        )
    if policy.reduce_dtype not in (None, policy.param_dtype):
        raise PlanError(
            f"gradients are reduced in the type of the weights that computed them; {name!r} has "
            f"param_dtype={policy.param_dtype} and reduce_dtype={policy.reduce_dtype}: leave out "
            "reduce_dtype, or compute in it"
        )
