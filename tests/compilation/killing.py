"""Runs one thing that a vault does in a process of its own, which dies by SIGKILL after so many lines of the room."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PROGRAM = """
import os, sys, threading
from pathlib import Path
from dflash.compilation.vault import Vault
from dflash.compilation import far
count = [0]
def trace(frame, event, argument):
    file = frame.f_code.co_filename
    ours = "/dflash/compilation/" in file or file.endswith("/dflash/atomic.py")
    if event == "line" and ours and not file.endswith("/holders.py"):  # which only looks, at every process
        count[0] += 1
        if count[0] == int(sys.argv[1]):
            os.kill(os.getpid(), 9)
    return trace
vault = Vault(Path(sys.argv[2]), Path(sys.argv[3]))
threading.settrace(trace)
sys.settrace(trace)
try:
    far.answer(vault, *sys.argv[4:])
finally:
    sys.settrace(None)
    print(count[0])
"""


def run(step: int, folder: Path, key: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Ask a role of far.py of a vault; killed at line `step` of the room, or not if that is 0. Prints the lines."""
    command = [sys.executable, "-B", "-c", PROGRAM, str(step), str(folder), str(key), *words]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def start(folder: Path, key: Path, *words: str) -> subprocess.Popen[str]:
    """The same, not killed, at once with others."""
    command = [sys.executable, "-B", "-c", PROGRAM, "0", str(folder), str(key), *words]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
