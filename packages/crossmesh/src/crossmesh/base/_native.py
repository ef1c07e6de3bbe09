"""The compiled core; if it is missing, the import fails with a sentence that says how to get it."""

try:
    from crossmesh import _core as core
except ImportError as error:
    raise ImportError(
        "crossmesh needs its compiled core; build it with `pip install ./packages/crossmesh` "
        "(a C++17 compiler is all it needs from the system; see its README.md)"
    ) from error

__all__ = ["core"]
