"""NVIDIA's installer is asked for the driver without its kernel modules, in the word that it knows. It has a stand-in
here, since the real one has hundreds of megabytes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dflash.provision.operations.driver import INSTALL

STAND_IN = """case $1 in
--advanced-options) printf '  %s\\n' '-K, --kernel-module{s}-only' --no-kernel-module{s} --no-kernel-module-source ;;
*) echo "$@" >"$0.asked"; exit {status} ;;
esac
"""


def install(folder: Path, plural: str, status: int = 0) -> int:
    (folder / "driver.run").write_text(STAND_IN.format(s=plural, status=status))
    return subprocess.run(["sh", "-c", INSTALL, "sh", str(folder / "driver.run")], check=False).returncode


@pytest.mark.parametrize("plural", ["", "s"])
def test_an_installer_is_told_to_leave_the_kernel_modules_out_in_its_own_word(tmp_path: Path, plural: str):
    assert install(tmp_path, plural) == 0
    asked = (tmp_path / "driver.run.asked").read_text().split()
    assert asked == ["--silent", f"--no-kernel-module{plural}", "--no-nouveau-check", "--no-backup"]


def test_one_that_fails_is_not_taken_for_one_that_did_its_work(tmp_path: Path):
    assert install(tmp_path, "s", status=3) == 3
