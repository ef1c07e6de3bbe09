"""Typed errors: one base class, so that `except ShardspecError` catches all of them."""


class ShardspecError(Exception):
    """Base of every error that this package raises on purpose."""


class AmountError(ShardspecError, ValueError):
    """A text is no amount of bytes."""


class MeshError(ShardspecError, ValueError):
    """A mesh whose shape, names or device ids contradict each other."""


class UnknownAxisError(ShardspecError, LookupError):
    """An axis name or index that the mesh does not have."""


class UnknownDeviceError(ShardspecError, LookupError):
    """A device id or coordinates outside the mesh."""


class SpecError(ShardspecError, ValueError):
    """A sharding spec that uses an axis twice, or text that is no spec."""


class LayoutError(ShardspecError, ValueError):
    """A spec that does not fit the tensor or the mesh of its layout."""


class StridedLayoutError(LayoutError):
    """A shard of several pieces where one is needed."""


class NotationError(ShardspecError, ValueError):
    """Text that is not in a notation, or a layout that a notation cannot say.

    `position` is the offset in `text` where reading stopped; both are None if nothing was read.
    """

    def __init__(self, message: str, *, text: str | None = None, position: int | None = None):
        super().__init__(message)
        self.text = text
        self.position = position


class ReshardError(ShardspecError, ValueError):
    """No collectives lead from the source to the destination layout."""


class UnevenLayoutError(ReshardError):
    """A layout whose shards differ in size, where only even ones can be resharded."""


class ShardsError(ShardspecError, ValueError):
    """Shards that do not fit their layout, or replicas that disagree."""


class PictureError(ShardspecError, ValueError):
    """A picture of something that cannot be drawn, or for a file that is neither PNG nor SVG."""


class InternalError(ShardspecError, RuntimeError):
    """Something went wrong that should not have; the message says what, and where."""


class MissingExtraError(ShardspecError, ImportError):
    """A function that needs a library which is not installed; the message says how to get it."""
