"""The kind `command`: a program of one's own, run without a shell in the step's folder.

It finds that folder as DFLASH_OUT, and the folder of each step that it needs as DFLASH_STEP_<NAME>, in capitals and
with `_` for what is no letter or digit. What it prints is the step's log, and its exit status the step's. Its key is
made of its words and of the keys of what it needs; files that it reads otherwise belong into the step's `inputs`, of
which the relative ones begin at DFLASH_PROJECT, here and on a host.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.errors import StepFailed, UsageError
from dflash.pipeline.kinds import StepInputs, StepKind

_POLL_S = 0.05


@dataclass(frozen=True)
class CommandConfig:
    """`argv` are the program, looked for in PATH unless it is an absolute path, and its words."""

    argv: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise ValueError("argv must begin with a program: [echo, hello]")
        if any("\0" in word for word in self.argv):
            raise ValueError("a word of argv has a NUL, which no program can be given")


def run(step: StepInputs) -> dict[str, Any]:
    """Run the program to its end.

    Raises StepFailed with its status (127 when there is no such program, 128 + number for a signal), UsageError, or
    KeyboardInterrupt, once the program and what it started in its process group have ended too.
    """
    argv = list(step.config.argv)
    try:
        process = subprocess.Popen(argv, cwd=step.out, env=_environ(step), stdin=subprocess.DEVNULL, process_group=0)
    except OSError as failure:
        what = f"{argv[0]!r} can not be run: {failure.strerror}"
        raise StepFailed(what, status=127, cure="name a program in PATH, or one by its absolute path") from None
    try:
        status = process.wait()
    except KeyboardInterrupt:
        _end(process)
        raise
    if status:
        how = f"ended with status {status}" if status > 0 else f"was killed by signal {-status}"
        cure = f"its log is {step.log}"
        raise StepFailed(f"{argv[0]!r} {how}", status=status if status > 0 else 128 - status, cure=cure)
    return {"argv": argv}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Tell a program and all of its group to end, as a shell does not tell what it waits for, and wait for them."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        while True:
            os.killpg(process.pid, 0)
            time.sleep(_POLL_S)


def _environ(step: StepInputs) -> dict[str, str]:
    """Without what only this step's own process needs to find this package."""
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    if paths := os.environ.get("PYTHONPATH", "").split(os.pathsep)[1:]:
        environ["PYTHONPATH"] = os.pathsep.join(paths)
    project = {"DFLASH_PROJECT": str(step.project)} if step.project else {}
    return {**environ, **project, "DFLASH_OUT": str(step.out), **_folders(step.inputs)}


def _folders(needed: Mapping[str, Path]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, folder in needed.items():
        variable = f"DFLASH_STEP_{re.sub('[^A-Z0-9]', '_', name.upper())}"
        if variable in found:
            raise UsageError(f"two of the steps that it needs would both be {variable}", cure="give one another name")
        found[variable] = str(folder)
    return found


COMMAND = StepKind(
    "command",
    CommandConfig,
    run,
    takes_needs=True,
    sources=("pipeline/command.py",),
    describes="run a program of one's own",
)
