"""A gigabyte each way through the chain, with flat memory at both ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.sshd import Sshd

REPOSITORY = Path(__file__).parents[2]
SIZE = 1 << 30

PROGRAM = """
import re, sys
from dflash.hosts.chain import parse_chain
from dflash.hosts.reach import reach

class Zeros:
    left = int(sys.argv[2])
    def read(self, size):
        size = min(size, self.left)
        self.left -= size
        return bytes(size)

with reach(parse_chain(sys.argv[1])) as connection:
    got = [0]
    def count(data):
        got[0] += len(data)
    connection.run(["head", "-c", sys.argv[2], "/dev/zero"], stdout=count)
    taken = int(connection.run(["wc", "-c"], stdin=Zeros()).stdout)
    # Not ru_maxrss: a process has that of whoever forked it.
    shown = [open(f"/proc/{pid}/status").read() for pid in ("self", connection.hello.pid)]
    peaks = [re.search(r"VmHWM:\\s*(\\d+)", each)[1] for each in shown]
print(got[0], taken, *peaks)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("chain", ["local", "ssh:lab"])
def test_a_gigabyte_each_way_takes_less_than_a_hundred_megabytes_at_both_ends(lab_sshd: Sshd, chain: str):
    command = [sys.executable, "-B", "-c", PROGRAM, chain, str(SIZE)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=True)
    got, taken, caller_kb, agent_kb = map(int, done.stdout.split())
    assert (got, taken) == (SIZE, SIZE)
    assert caller_kb < 100_000, f"{caller_kb} kB here"
    assert agent_kb < 100_000, f"{agent_kb} kB there"
