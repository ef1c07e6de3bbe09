"""Imports the compiled core; if it is missing, the error says how to build it."""

try:
    from autoshard import _core as core
except ImportError as error:
    raise ImportError(
        "autoshard needs its compiled core; build it with `pip install ./packages/autoshard` "
        "(a C++17 compiler is all it needs from the system; see its README.md)"
    ) from error

__all__ = ["core"]
