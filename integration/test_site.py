"""The site of docs/ is complete: public names have docstrings, and pages are in the menu."""

import re
from pathlib import Path

import pytest
from site_check.names import MODULES, docstring, public_names

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
MENU = (ROOT / ".ci" / "mkdocs.yml").read_text().partition("\nnav:\n")[2]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_docstring(module: str) -> None:
    bare = [name for name in public_names(module) if not docstring(module, name).strip()]
    assert bare == []


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_on_the_reference(module: str) -> None:
    # mkdocstrings lists what is in `__all__`, but where a function has the name of its module it
    # finds the module; such a function is listed by its full name.
    page = (DOCS / "reference" / f"{module}.md").read_text()
    written = set(re.findall(r"^::: ([\w.]+)$", page, flags=re.MULTILINE))
    hidden = {
        f"{origin}.{name}"
        for name, origin in public_names(module).items()
        if origin == f"{module}.{name}"
    }
    assert written == {module} | hidden


def test_every_page_is_in_the_menu_once() -> None:
    listed = re.findall(r"([\w./]+\.md)$", MENU, flags=re.MULTILINE)
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert sorted(listed) == sorted(pages)
