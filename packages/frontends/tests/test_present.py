import pytest
from frontends.base.present import present
from frontends.errors import InternalError


def test_what_is_there_is_itself() -> None:
    value: list[int] = []
    assert present(value, "lists are there") is value


def test_what_is_not_is_a_fault_of_this_package() -> None:
    with pytest.raises(InternalError, match=r"^a state is left by a draw; got None$"):
        present(None, "a state is left by a draw")
