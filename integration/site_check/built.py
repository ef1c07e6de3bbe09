"""What has to be true of the built site; each check returns what is wrong."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

from site_check.browser import look
from site_check.names import MODULES, public_names

MOST_BYTES = 1_500_000
"""The most bytes that a page may load, with styles, scripts and the index of the search."""

WIDTHS = (390, 1440)
PAGES = ("", "start/", "read_a_plan/", "compared/", "benchmarks/", "reference/autoshard/")
"""The pages that are looked at in a browser: the front page, and one of each kind."""

# In pages and styles, what a browser fetches by itself; links that users follow are not in it.
_FETCHED = re.compile(
    r'(?:<(?:script|img|iframe|source|video)\b[^>]*?\bsrc|<link\b(?![^>]*rel="(?:canonical|alternate)")'
    r'[^>]*?\bhref)="((?:https?:)?//[^"]+)"|url\(["\']?((?:https?:)?//[^)"\']+)'
)

_SCRIPT = Path(__file__).with_name("look.js").read_text(encoding="utf-8")


def check_reference(site: Path) -> list[str]:
    """Every public name is on the reference, by the inventory that the site has of it."""
    content = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    listed = {line.split(" ")[0] for line in zlib.decompress(content).decode().splitlines()}
    return [
        f"{module}.{name} is not on the reference"
        for module in MODULES
        for name, origin in public_names(module).items()
        if not listed & {f"{module}.{name}", f"{origin}.{name}"}
    ]


def check_fetched(site: Path) -> list[str]:
    """No page or style makes a browser load something from another host."""
    return [
        f"{path.relative_to(site)} loads {found.group(1) or found.group(2)}"
        for path in sorted(site.rglob("*"))
        if path.suffix in (".html", ".css")
        for found in _FETCHED.finditer(path.read_text(encoding="utf-8"))
    ]


def check_page(site: Path, page: str, width: int) -> list[str]:
    """A page fits a window of some width, is quick to load, and can be read; a search finds."""
    seen = look(site, page, width, _SCRIPT)
    wrong = [f"console: {text}" for text in seen["console"]]
    wrong += [f"loads from {host}" for host in seen["hosts"]]
    wrong += [f"picture is not there: {source}" for source in seen["broken"]]
    wrong += [f"{scheme} is pale: {e}" for scheme, all_ in seen["pale"].items() for e in all_]
    if seen["width"] != width:
        wrong.append(f"the browser's window is {seen['width']} wide")
    if seen["content"] > width:
        wrong.append(f"the content is {seen['content']} pixels wide")
    if seen["bytes"] > MOST_BYTES:
        wrong.append(f"{seen['bytes']} bytes are loaded, more than {MOST_BYTES}")
    if "?q=" in page and not seen["hits"]:
        wrong.append("the search finds nothing")
    return [f"{page or 'front page'} at {width}: {text}" for text in wrong]
