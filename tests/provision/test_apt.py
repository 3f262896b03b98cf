"""The script that installs packages, with stand-ins for apt-get and dpkg that write down how they are called."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dflash.provision.bare import script
from dflash.provision.operations.packages import APT

APT_GET = """#!/bin/sh
case "$*" in *update*) verb=update ;; *) verb=install ;; esac
echo "$verb" >> "$LOG/calls"
[ -e "$LOG/words" ] || printf '%s\\n' "$@" > "$LOG/words"
[ -s "$LOG/$verb" ] || exit 0
head -n 1 "$LOG/$verb" >&2
sed -i 1d "$LOG/$verb"
exit 100
"""
DPKG_QUERY = """#!/bin/sh
case "$*" in *awk*) exit 1 ;; esac
echo 'ii '
"""


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """A folder of stand-ins. A line in its file `update` or `install` is what one call says as it fails."""
    sleep = "#!/bin/sh\necho slept >> $LOG/calls\n"
    for name, text in (("apt-get", APT_GET), ("dpkg-query", DPKG_QUERY), ("sleep", sleep)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def run(stubs: Path, *argv: str, stdin: bytes = b"") -> tuple[int, list[str], str]:
    """The status, what was called, and what was said."""
    environment = {**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}", "LOG": str(stubs)}
    done = subprocess.run(argv, env=environment, input=stdin, capture_output=True, timeout=30)
    return done.returncode, (stubs / "calls").read_text().split(), (done.stdout + done.stderr).decode()


def install(stubs: Path) -> tuple[int, list[str], str]:
    return run(stubs, "sh", "-c", APT, "sh", "git", "g++")


def test_lists_that_do_are_not_read_again(stubs: Path):
    assert install(stubs) == (0, ["install"], "")
    assert (stubs / "words").read_text().split()[-4:] == ["install", "--", "git", "g++"]


def test_lists_that_are_old_or_not_there_are_read(stubs: Path):
    (stubs / "install").write_text("E: Unable to locate package git\n")
    assert install(stubs) == (0, ["install", "update", "install"], "")


def test_whoever_else_reads_the_lists_is_waited_for(stubs: Path):
    (stubs / "install").write_text("E: Unable to locate package git\n")
    (stubs / "update").write_text("E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7\n" * 2)
    assert install(stubs) == (0, ["install", "update", "slept", "update", "slept", "update", "install"], "")


def test_a_package_that_there_is_not_is_what_is_said_last(stubs: Path):
    (stubs / "install").write_text("E: Unable to locate package gti\n" * 2)
    assert install(stubs) == (100, ["install", "update", "install"], "E: Unable to locate package gti\n")


def test_a_name_that_other_packages_provide_is_said(stubs: Path):
    status, _, said = run(stubs, "sh", "-c", APT, "sh", "git=1:2", "awk")
    assert status == 1
    assert said == "awk is no package but what others provide: name the one of them that is to be there\n"


def test_lists_that_can_not_be_read_are_said(stubs: Path):
    (stubs / "install").write_text("E: Unable to locate package git\n")
    (stubs / "update").write_text("E: The repository 'http://mirror bookworm Release' does not have a Release file.\n")
    status, calls, said = install(stubs)
    assert (status, calls) == (100, ["install", "update"])
    assert "does not have a Release file" in said


def test_through_sh_alone_it_is_the_same_script_and_says_how_it_ended(stubs: Path):
    if os.geteuid() != 0:
        pytest.skip("a user would be asked for sudo")
    (stubs / "install").write_text("E: Unable to locate package python3-minimal\n")
    calls = ["install", "update", "install"]
    assert run(stubs, "sh", "-s", stdin=script("word")) == (0, calls, "word 0\n")
    assert (stubs / "words").read_text().split()[-3:] == ["install", "--", "python3-minimal"]
