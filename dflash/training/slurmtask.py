"""One worker as a task of a Slurm job: `srun ... python -m dflash.training.slurmtask REQUEST.json`.

It is a worker of `dflash.training.process`, to which Slurm says what torchrun would, and whose wish to stop comes as a
signal: SIGTERM, which Slurm sends before it ends a job, or SIGUSR1, which the job asks for before its time is up.

A node that Slurm can not reach is down to it, and the job starts anew on others, while the node's workers may well live
on and see the same folder. They end once they see that another start has been made there.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

START = "start"
"""The file beside the request that names the newest start of the step's workers: the number of the job, and how often
it was put back into the queue (SCRIPT in slurmqueue.py writes it)."""

_LOOKS_S = 2.0

_FIRST_PORT, _PORTS = 12_000, 20_000
"""Below those that Linux gives to connections (32,768 on)."""


def place(slurm: Mapping[str, str]) -> dict[str, str]:
    """What torch.distributed reads (`env://`), of the variables that srun sets for a task (srun(1), OUTPUT ENVIRONMENT
    VARIABLES). The first worker is on the node on which the job's script runs, so where srun was launched. Jobs that
    share a node have ports of their own, by their numbers."""
    return {
        "RANK": slurm["SLURM_PROCID"],
        "WORLD_SIZE": slurm["SLURM_NTASKS"],
        "LOCAL_RANK": slurm["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": str(int(slurm["SLURM_NTASKS"]) // int(slurm["SLURM_NNODES"])),
        "MASTER_ADDR": slurm["SLURM_LAUNCH_NODE_IPADDR"],
        "MASTER_PORT": str(_FIRST_PORT + int(slurm["SLURM_JOB_ID"]) % _PORTS),
    }


def is_newest(start: Path, slurm: Mapping[str, str]) -> bool:
    """Whether no start after that of this task has been made, as far as this node sees: it may see what was before."""
    mine = int(slurm["SLURM_JOB_ID"]), int(slurm.get("SLURM_RESTART_COUNT", "0"))
    with contextlib.suppress(OSError, ValueError):
        job, restarts = start.read_text().split()
        return (int(job), int(restarts)) <= mine
    return True


def _end_after_another(start: Path) -> None:
    """End this process, as it stands, once another start is the newest: both would write into the same files."""
    while is_newest(start, os.environ):
        time.sleep(_LOOKS_S)
    print("Slurm has started this training elsewhere: this worker ends", file=sys.stderr, flush=True)
    os._exit(1)


def main() -> int:
    """Train; the exit status of whatever went wrong."""
    request = Path(sys.argv[1])
    if not request.is_file():
        node = os.environ["SLURMD_NODENAME"]
        print(f"node {node} does not see {request}: all nodes must share the run's root", file=sys.stderr)
        return 1
    stop = Path(json.loads(request.read_text(encoding="utf-8"))["stop"])
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, frame: stop.touch())
    threading.Thread(target=_end_after_another, args=(request.with_name(START),), daemon=True).start()
    os.environ.update(place(os.environ))
    # A worker ends with its standard input, and a task of a job has none. Slurm ends it when srun is gone.
    kept, _ = os.pipe()
    os.dup2(kept, 0)
    from dflash.training import process

    return process.main()


if __name__ == "__main__":
    sys.exit(main())
