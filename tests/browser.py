"""Headless Chromium, driven over the DevTools protocol through a pair of pipes: no port, no library.

    PYTHONPATH=. .venv/bin/python tests/browser.py runs/ID/report.html

takes the two pictures of a report that are in the README, docs/report.png and docs/report-dark.png.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_PROGRAM = "import os, sys; [os.dup2(int(sys.argv[n]), n + 2) for n in (1, 2)]; os.execv(sys.argv[3], sys.argv[3:])"
"""Chromium reads from descriptor 3 and writes to 4."""


def chromium() -> str:
    """Chromium's path. Where there is none a test is skipped, but not in continuous integration: there it fails."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found:
        return found
    if os.environ.get("CI"):
        pytest.fail("there is no Chromium here: apt-get install chromium")
    pytest.skip("there is no Chromium here: apt-get install chromium")


PATIENCE_S = 30
"""How long a browser may say nothing: one that hangs is no reason for a suite to."""


class Page:
    """One page of a browser, and what happened in it since it was opened."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._number, self._session, self._said = 0, "", b""
        self.events: list[dict[str, Any]] = []
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.tell(f"{domain}.enable")

    def tell(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol; its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            said = self._hear()
            if said.get("id") == self._number:
                assert "error" not in said, said["error"]
                return said["result"]

    def _hear(self) -> dict[str, Any]:
        while b"\0" not in self._said:
            ready, _, _ = select.select([self._answers], [], [], PATIENCE_S)
            assert ready, f"the browser has said nothing for {PATIENCE_S} s"
            more = os.read(self._answers, 1 << 16)
            assert more, "the browser has gone"
            self._said += more
        said, _, self._said = self._said.partition(b"\0")
        message = json.loads(said)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, file: Path, width: int, *, scheme: str = "light", scale: float = 1) -> None:
        """Show a file on a screen `width` pixels wide, in a light or dark scheme, and wait until it is loaded."""
        self.events.clear()
        phone = width < 600
        size = {"width": width, "height": 800, "deviceScaleFactor": scale, "mobile": phone}
        self.tell("Emulation.setDeviceMetricsOverride", **size)
        self.tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.tell("Page.navigate", url=file.as_uri())
        while not any(each["method"] == "Page.loadEventFired" for each in self.events):
            self._hear()

    def close(self) -> None:
        """End the browser."""
        self._session = ""
        self.tell("Browser.close")

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is in the page."""
        return self.tell("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def complaints(self) -> list[str]:
        """What the console was told, exceptions included."""
        names = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(each["params"]) for each in self.events if each["method"] in names]

    def requests(self) -> list[str]:
        """The addresses that were asked for, but those that the page holds itself."""
        asked = [
            each["params"]["request"]["url"] for each in self.events if each["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in asked if not url.startswith("data:")]

    def picture(self, *, height: int | None = None) -> bytes:
        """The page as a PNG, from its top to `height`, or whole."""
        box = self.tell("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": box["width"], "height": height or box["height"], "scale": 1}
        return base64.b64decode(self.tell("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"])


@contextlib.contextmanager
def browser() -> Iterator[Page]:
    """A browser of its own, with nothing of any user's, which is gone afterwards."""
    program, home = chromium(), tempfile.mkdtemp(prefix="dflash-browser-")
    (read, commands), (answers, write) = os.pipe(), os.pipe()
    high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in (read, write)]  # not among what Chromium reads
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--hide-scrollbars"]
    options += [
        f"--user-data-dir={home}",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-dev-shm-usage",
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *map(str, high), program, *options],
        pass_fds=high,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for each in (read, write, *high):
        os.close(each)
    try:
        page = Page(commands, answers)
        yield page
        page.close()
        process.wait(20)
    finally:
        process.kill()
        process.wait()
        os.close(commands)
        os.close(answers)
        shutil.rmtree(home, ignore_errors=True)


def main() -> None:
    """Take the pictures: the top of the page, for screens of two pixels a point."""
    docs = Path(__file__).parents[1] / "docs"
    with browser() as page:
        for scheme, name in (("light", "report.png"), ("dark", "report-dark.png")):
            page.open(Path(sys.argv[1]).absolute(), 960, scheme=scheme, scale=2)
            (docs / name).write_bytes(page.picture(height=904))


if __name__ == "__main__":
    main()
