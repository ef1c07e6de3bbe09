"""Loads pages of a folder in a headless browser, and returns what a script on them finds.

The pages come from a server on this machine that adds the script to each page; the script posts
what it found. The browser reaches no other host.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "google-chrome", "chrome")
_FRAME = "/frame/"
"""A window of a browser has a least width, a frame in it has none: `/frame/WIDTH/PAGE`."""

DEADLINE_S = 60.0
"""How long a page may take, on a machine that does other work, too."""

_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
)


class SiteError(AssertionError):
    """The site cannot be looked at, or is not as it has to be."""


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, *arguments: Any, script: str, said: Queue[Any], **options: Any) -> None:
        self._script, self._said = script, said
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        if self.path.startswith(_FRAME):
            width, _, page = self.path.removeprefix(_FRAME).partition("/")
            self._send(f'<iframe src="/{page}" width="{width}" height="900"></iframe>')
            return
        asked = Path(self.translate_path(self.path))
        file = asked / "index.html" if asked.is_dir() else asked
        if file.suffix != ".html" or not file.exists():
            super().do_GET()
            return
        text = file.read_text(encoding="utf-8")
        self._send(text.replace("</body>", f"<script>{self._script}</script></body>"))

    def _send(self, page: str) -> None:
        content = page.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
        self._said.put(json.loads(content))

    def log_message(self, *_: object) -> None:
        """Print nothing for each file."""


@contextmanager
def _serving(folder: Path, script: str) -> Iterator[tuple[str, Queue[Any]]]:
    said: Queue[Any] = Queue()
    handler = partial(_Handler, script=script, said=said, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", said
        finally:
            server.shutdown()


def look(folder: Path, page: str, width: int, script: str) -> Any:
    """What a script finds on a page.

    Args:
        folder: The site.
        page: The page in it, such as `start/?q=mesh`.
        width: Of the window, in pixels.
        script: Calls `say(value)` once, whose JSON is returned. The console's errors are in
            the value's `console`.

    Raises:
        SiteError: There is no browser, or the script said nothing in time.
    """
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        raise SiteError(
            f"the site is looked at in a browser; there is none of {', '.join(NAMES)}: install "
            "one (apt-get install chromium fonts-dejavu-core)"
        )
    say = "const say = v => fetch('/say', {method: 'POST', body: JSON.stringify(v)});"
    with (
        tempfile.TemporaryDirectory() as user,
        tempfile.TemporaryFile("w+") as log,
        _serving(folder, say + script) as (address, said),
    ):
        window = (f"--user-data-dir={user}", "--window-size=1500,1000")
        framed = f"{address.removesuffix('/')}{_FRAME}{width}/{page}"
        # With a port for debugging, the browser stays until it is ended.
        command = [browser, *_OPTIONS, *window, "--remote-debugging-port=0", framed]
        process = subprocess.Popen(command, stdout=log, stderr=log, text=True)
        try:
            found = said.get(timeout=DEADLINE_S)
        except Empty:
            log.seek(0)
            raise SiteError(f"{page} said nothing in {DEADLINE_S} s:\n{log.read()}") from None
        finally:
            process.terminate()
            process.wait(30)
        log.seek(0)
        found["console"] = re.findall(r':CONSOLE[:(].*?\] "(.*)", source', log.read())
    return found
