"""Typed errors: one base class, so that `except ShardspecError` catches all of them."""


class ShardspecError(Exception):
    """Base of every error that this package raises on purpose."""


class AmountError(ShardspecError, ValueError):
    """Text that cannot be read as a number of bytes."""


class MeshError(ShardspecError, ValueError):
    """A mesh whose shape, names or device ids contradict each other."""


class UnknownAxisError(ShardspecError, LookupError):
    """An axis name or index that the mesh does not have."""


class UnknownDeviceError(ShardspecError, LookupError):
    """A device id or coordinates outside the mesh."""


class SpecError(ShardspecError, ValueError):
    """A sharding spec that uses an axis twice, or text that is not a spec."""


class LayoutError(ShardspecError, ValueError):
    """A spec that does not fit the tensor or the mesh of its layout."""


class StridedLayoutError(LayoutError):
    """A strided layout (shards of several pieces) where each shard has to be one block."""


class NotationError(ShardspecError, ValueError):
    """Text that is not in a notation, or a layout that a notation cannot express.

    `position` is the offset in `text` at which parsing stopped; both are None if nothing was
    parsed.
    """

    def __init__(self, message: str, *, text: str | None = None, position: int | None = None):
        super().__init__(message)
        self.text = text
        self.position = position


class ReshardError(ShardspecError, ValueError):
    """No collectives lead from the source to the destination layout."""


class UnevenLayoutError(ReshardError):
    """A layout whose shards differ in size, where only equal shards can be resharded."""


class ShardsError(ShardspecError, ValueError):
    """Shards that do not fit their layout, or replicas that disagree."""


class PictureError(ShardspecError, ValueError):
    """Something that cannot be drawn, or a picture file that is neither PNG nor SVG."""


class InternalError(ShardspecError, RuntimeError):
    """A bug in this package; the message says what went wrong, and where."""


class MissingExtraError(ShardspecError, ImportError):
    """A function needs a library that is not installed; the message says how to install it."""
