"""Checks a built site: `python integration/site_check SITE`, which `nox -s docs` does."""

import sys
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import site_check` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from site_check.built import PAGES, WIDTHS, check_fetched, check_page, check_reference

if __name__ == "__main__":
    site = Path(sys.argv[1])
    pages = [(page, width) for page in (*PAGES, "?q=resharding") for width in WIDTHS]
    wrong = check_reference(site) + check_fetched(site)
    wrong += [text for page, width in pages for text in check_page(site, page, width)]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{len(pages)} pages looked at, {len(wrong)} things wrong")
    sys.exit(bool(wrong))
