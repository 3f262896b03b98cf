"""A real image registry on loopback, which an engine needs no certificate for."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.lab.service import free_port, need, wait_until


@contextlib.contextmanager
def registry() -> Iterator[str]:
    """Start a registry whose images are in a folder of its own; its `127.0.0.1:PORT`. Both are gone afterwards."""
    need(["docker-registry"], ["docker-registry"])
    with tempfile.TemporaryDirectory(prefix="dflash-registry-") as name:
        folder, address = Path(name), f"127.0.0.1:{free_port()}"
        configuration = folder / "config.yml"
        configuration.write_text(
            "version: 0.1\n"
            f"storage:\n  filesystem:\n    rootdirectory: {folder}/data\n  delete:\n    enabled: true\n"
            f"http:\n  addr: {address}\n  secret: nobody else asks\n"
        )
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(["docker-registry", "serve", str(configuration)], stdout=log, stderr=log)
        try:
            wait_until(lambda: _answers(address, process, folder / "log"), "docker-registry")
            yield address
        finally:
            process.terminate()
            process.wait(10)


def _answers(address: str, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, f"docker-registry ended: {log.read_text()}"
    # Whatever http_proxy says: this is loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with contextlib.suppress(OSError), opener.open(f"http://{address}/v2/", timeout=1) as response:
        return bool(response.status == 200)
    return False
