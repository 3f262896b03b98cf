"""One host's share of a training on several: `PYTHON -P -m dflash.pipeline.launchers.node SPEC.json`, a detached job.

Starts torchrun, and ends it when nobody has renewed its lease for `patience_s` seconds: a launcher that was killed, or
cut off for good, must not leave a training behind. The workers are told to save what they have first, and have
`grace_s` seconds for it.

A spec is {"lock" and "of": as `at_work` has them, "folder": where its own files are, "request": of
dflash.training.process, but for "stop", "nodes", "node", "workers": on this host, "address" and "port": where the hosts
meet, "patience_s", "grace_s"}. In the folder are `lease`, which is renewed by touching it, `stop`, which ends the
training once it is there, and torchrun's own `logs`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dflash.errors import BusyError
from dflash.pipeline.memory import oom_kills

OUT_OF_MEMORY = "the kernel ended a process of this host for want of memory"
"""The line by which a launcher elsewhere learns it: from there a worker that is killed so looks like any other."""


def command_of(spec: Mapping[str, Any], request: Path) -> list[str]:
    """torchrun's words. The rendezvous is static: node 0 has the lowest ranks, as they were shared out."""
    return [
        *(sys.executable, "-P", "-m", "torch.distributed.run"),
        *(f"--nnodes={spec['nodes']}", f"--node-rank={spec['node']}", f"--nproc-per-node={spec['workers']}"),
        *(f"--master-addr={spec['address']}", f"--master-port={spec['port']}", "--max-restarts=0"),
        *("--tee=3", f"--log-dir={spec['folder']}/logs", "--no-python"),
        *(sys.executable, "-P", "-m", "dflash.training.process", str(request)),
    ]


def keep(
    process: subprocess.Popen[bytes],
    lease: Path,
    patience_s: float,
    grace_s: float,
    stop: Callable[[], object],
    watch: Callable[[], object] = lambda: None,
) -> int:
    """Wait for a process; its exit status as a shell gives it. When its lease was not renewed for `patience_s` seconds
    it is told to `stop`, and after `grace_s` more no longer waited for. This machine's clock may jump meanwhile.
    `watch` is called about once a second, and at the end."""
    told, renewed, heard = False, _renewed(lease), time.monotonic()
    while True:
        try:
            status = process.wait(1.0)
            watch()
            return status if status >= 0 else 128 - status
        except subprocess.TimeoutExpired:
            watch()
            if (now := _renewed(lease)) != renewed:
                renewed, heard = now, time.monotonic()
            silent = time.monotonic() - heard
        if silent > patience_s and not told:
            print(f"nobody has asked for this for {silent:.0f} s: it is told to end", file=sys.stderr, flush=True)
            stop()
            told = True
        elif silent > patience_s + grace_s:
            return 1


def _renewed(lease: Path) -> int:
    try:
        return lease.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


@contextlib.contextmanager
def at_work(lock: Path, of: str) -> Iterator[None]:
    """Be the only one who works on a step at this host, `of` whom others are told. Raises BusyError, which tells them.

    Two runs of one step have folders of their own, but would share its GPUs.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.pread(descriptor, 4096, 0).decode(errors="replace") or "another run"
            cure = "wait for it, stop it, or name another host"
            raise BusyError(f"{other} is at work on this step here", where=str(lock), cure=cure) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, of.encode(errors="backslashreplace"), 0)
        yield
    finally:
        os.close(descriptor)


def main() -> int:
    """Run torchrun; its exit status."""
    spec = json.loads(Path(sys.argv[1]).read_bytes())
    try:
        with at_work(Path(spec["lock"]), spec["of"]):
            return _torchrun(spec)
    except BusyError as busy:  # told as a worker tells its failure
        failure = {"class": "BusyError", "what": busy.what, "where": busy.where, "cure": busy.cure}
        print(json.dumps({"dflash": "failure", **failure}), flush=True)
        return busy.exit_code


def _torchrun(spec: Mapping[str, Any]) -> int:
    folder = Path(spec["folder"])
    shutil.rmtree(folder, ignore_errors=True)  # of an attempt before
    folder.mkdir(parents=True)
    lease, stop, request, kills = folder / "lease", folder / "stop", folder / "request.json", oom_kills()
    lease.touch()
    request.write_text(json.dumps({**spec["request"], "stop": str(stop)}), encoding="utf-8")

    def watch() -> None:
        nonlocal kills
        if (now := oom_kills()) > kills:  # told at once: the others are ended soon, and this process with them
            print(OUT_OF_MEMORY, flush=True)
            kills = now

    # Its input ends with this process, however that ends, and with it the workers do.
    with subprocess.Popen(command_of(spec, request), stdin=subprocess.PIPE) as torchrun:
        return keep(torchrun, lease, spec["patience_s"], spec["grace_s"], stop.touch, watch)


if __name__ == "__main__":
    sys.exit(main())
