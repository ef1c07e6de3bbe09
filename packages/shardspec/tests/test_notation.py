import pytest
from shardspec import Mesh, NotationError
from shardspec.notation import NOTATIONS, notation


@pytest.mark.parametrize("name", NOTATIONS)
@pytest.mark.parametrize("text", [None, 5, b"S0", ["S0"]])
def test_what_is_no_text_is_refused(name, text):
    with pytest.raises(NotationError, match="is a text; got ") as caught:
        notation(name).parse(text, mesh=Mesh((2,), ("x",)))
    assert (caught.value.text, caught.value.position) == ("", 0)


@pytest.mark.parametrize("name", ["gspmd", "", None])
def test_names_the_notations_there_are(name):
    with pytest.raises(NotationError, match=r"a notation is one of .'alpa', .*; got"):
        notation(name)
