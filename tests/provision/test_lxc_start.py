"""A container outlives the connection that started it: the agent kills what it started, and must leave this. LXC's
programs have stand-ins here; real containers are started in test_bare.py."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from dflash.hosts.chain import parse_chain
from dflash.hosts.command import Result
from dflash.hosts.reach import reach
from dflash.provision.operations.lxc import START
from tests.lab.service import wait_until

STAND_INS = {
    "systemctl": "exit 1\n",
    "lxc-start": '[ "$2" = box ] || { echo "lxc-start: no configuration for $2" >&2; exit 1; }\n'
    'echo $$ > "$LOG/pid"; exec sleep 60\n',
    "lxc-wait": 'for _ in 1 2 3 4 5 6 7 8 9 10; do [ -s "$LOG/pid" ] && exit 0; sleep 0.1; done; exit 1\n',
}


def start(folder: Path, name: str) -> Result:
    """Run the script over a connection that is then closed."""
    for program, text in STAND_INS.items():
        (folder / program).write_text(f"#!/bin/sh\n{text}")
        (folder / program).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "LOG": str(folder)}
    with reach(parse_chain("local")) as here:
        return here.run(["sh", "-c", START, "sh", name], env=environment)


def test_it_runs_on_when_the_connection_is_closed(tmp_path: Path):
    assert start(tmp_path, "box").code == 0
    process = int((tmp_path / "pid").read_text())
    assert Path(f"/proc/{process}/cmdline").read_bytes() == b"sleep\x0060\x00"
    os.kill(process, signal.SIGTERM)
    wait_until(lambda: not Path(f"/proc/{process}").exists(), "the end of the stand-in")


def test_one_that_does_not_start_says_why(tmp_path: Path):
    result = start(tmp_path, "another")
    assert result.code == 1
    assert result.stderr.decode().splitlines() == [
        "lxc-start: no configuration for another",
        "it did not start within 30 s",
    ]
