"""Debian without Python, which reaches the package archive as this machine does: what a new host is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

PYTHON = ("python3-minimal", "python3.11-minimal", "libpython3.11-minimal")


def make_bare(root: Path) -> None:
    """Remove Python from the lab's root file system at `root`, and let its apt fetch as ours does."""
    subprocess.run(["chroot", str(root), "dpkg", "--purge", *PYTHON], check=True, capture_output=True)
    (root / "etc" / "apt" / "apt.conf.d" / "99lab").write_text(apt_settings())
    for name in ("resolv.conf", "apt/auth.conf.d"):
        source, place = Path("/etc") / name, root / "etc" / name
        place.unlink(missing_ok=True) if source.is_file() else shutil.rmtree(place, ignore_errors=True)
        if source.exists():
            (shutil.copy if source.is_file() else shutil.copytree)(source, place)


def apt_settings() -> str:
    """How this machine fetches packages: proxies, certificates, whether a Release file may be old."""
    dump = subprocess.run(["apt-config", "dump"], check=True, capture_output=True, text=True).stdout
    kept = ("Acquire::http", "Acquire::Check-", "Acquire::Retries")
    return "".join(f"{line}\n" for line in dump.splitlines() if line.startswith(kept) and '""' not in line)
