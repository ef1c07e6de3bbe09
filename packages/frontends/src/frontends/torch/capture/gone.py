"""Placeholder for the gradient of a parameter that a step has used and not kept.

A step that ends with an update does not bring gradients back from the devices. Without a
placeholder, reading one would silently give that of an earlier step, or None; with it, reading is
an error.
"""

from __future__ import annotations

from typing import Any

import torch

from frontends.errors import PlanError

_ASKED = frozenset(
    (
        *("__get__", "dim", "size", "numel", "stride", "is_contiguous", "element_size"),
        *("is_floating_point", "is_complex"),
    )
)
"""Attributes and methods that torch uses of any tensor, and that do not need its values."""

_TYPES = {
    "double": torch.float64,
    "float": torch.float32,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}
_KEPT = frozenset(("to", "cpu", "detach_", "zero_", *_TYPES))
_KEPT |= {"requires_grad_", "__deepcopy__"}
"""Methods that are called when a model is copied or moved: their result has no values either."""


class GoneError(PlanError):
    """A gradient without values is used."""


class GoneGradient(torch.Tensor):
    """A gradient without values; any use that needs them raises `GoneError`."""

    @staticmethod
    def __new__(cls, like: torch.Tensor, dtype: torch.dtype | None = None) -> GoneGradient:
        """Create the gradient of a parameter, or a copy of another such gradient."""
        with torch._C.DisableTorchFunctionSubclass():
            gradient: GoneGradient = torch.Tensor._make_wrapper_subclass(
                cls, like.shape, dtype=dtype or like.dtype, device=like.device
            )
        return gradient

    def __init__(self, like: torch.Tensor, dtype: torch.dtype | None = None) -> None:
        super().__init__()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"<gradient of {list(self.shape)} that a step has used and not kept>"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if not args or not isinstance(args[0], GoneGradient):
            raise _gone()
        if name == "_has_compatible_shallow_copy_type":  # called when a module is moved
            return False
        asked = getattr(getattr(func, "__self__", None), "__name__", "")
        if name in _ASKED and asked != "is_sparse":  # optimizers read it before they update
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if name in _KEPT:
            arguments = (*args[1:], *(kwargs or {}).values(), _TYPES.get(name))
            dtype = next((a for a in arguments if isinstance(a, torch.dtype)), None)
            return args[0] if dtype is None else GoneGradient(args[0], dtype)
        raise _gone()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        raise _gone()


def _gone() -> GoneError:
    return GoneError(
        "gradients stay on the devices of a step that ends with an update; one is read after it: "
        "return it, or what you compute from it, from the step; or call optimizer.zero_grad() "
        "before you compute gradients yourself"
    )
