"""What the pages of the site need beside mkdocs' plugins."""

import re
from typing import Any

_TABLES = ("benchmarks.md", "nights.md")
"""Pages of measured figures, in which nobody searches for words."""

_CODE = re.compile(r'<(details|div) (class="(?:mkdocstrings-source|(?:doc-signature )?highlight))')
_SOURCE = re.compile(r'<details class="mkdocstrings-source">.*?</details>', re.DOTALL)
_SPAN = re.compile(r"</?span[^>]*>")


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Keep the index of the search small, which each page loads."""
    if page.file.src_uri in _TABLES:
        page.meta["search"] = {"exclude": True}
    return markdown


def on_page_content(html: str, page: Any, **_: object) -> str:
    """Make pages of the reference light.

    The search finds their names and what docstrings say of them, without code and arguments; the
    source has no colours, which would take four times as many bytes.
    """
    if not page.file.src_uri.startswith("reference/"):
        return html
    html = _SOURCE.sub(lambda match: _SPAN.sub("", match[0]), html)
    return _CODE.sub(r"<\1 data-search-exclude \2", html).replace(
        "<ul>", "<ul data-search-exclude>"
    )
