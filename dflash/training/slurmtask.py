"""One worker as a task of a Slurm job: `srun ... python -m dflash.training.slurmtask REQUEST.json`.

It is a worker of `dflash.training.process`, to which Slurm says what torchrun would, and whose wish to stop comes as a
signal: SIGTERM, which Slurm sends before it ends a job, or SIGUSR1, which the job asks for before its time is up.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from dflash.training import process

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
    os.environ.update(place(os.environ))
    # A worker ends with its standard input, and a task of a job has none. Slurm ends it when srun is gone.
    kept, _ = os.pipe()
    os.dup2(kept, 0)
    return process.main()


if __name__ == "__main__":
    sys.exit(main())
