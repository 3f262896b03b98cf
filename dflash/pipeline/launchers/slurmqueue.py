"""What is said to Slurm and what it answers: one job by its number, as its own programs print it.

The answers are read by pure functions. Tried with Slurm 22.05; of the fields only those are used that every version
since 17 prints.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash.errors import StepFailed, UsageError
from dflash.hosts.failures import HostError
from dflash.pipeline.launchers.config import Slurm
from dflash.pipeline.provenance.variables import HIDDEN, kept
from dflash.training.config import Topology, TrainConfig
from dflash.training.slurmtask import START

_STARTS = "dflash: the job starts"

SCRIPT = f"""\
#!/bin/sh
rm -f -- "$1" || exit
echo "$SLURM_JOB_ID ${{SLURM_RESTART_COUNT:-0}}" > "${{1%/*}}/{START}" || exit
shift
echo '{_STARTS}'
exec srun "$@"
"""
"""The job: it takes away the wish to stop of the start before, says which start it is, so that workers of another end,
and starts its own. All that varies is in its arguments."""

ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
)
"""States (squeue(1), JOB STATE CODES) after which nothing comes; all others are on the way to one of these."""


ENDING = "COMPLETING"
"""Its workers are being ended: it is gone then, or put back into the queue."""


@dataclass(frozen=True)
class Job:
    """How a job stands; `reason` why it waits, `restarts` how often it was put back into the queue."""

    state: str
    reason: str = ""
    restarts: int = 0
    nodes: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether it will not run again."""
        return self.state in ENDED


@dataclass(frozen=True)
class Death:
    """A task that ended badly, or did not start, the first of several: its rank, and how, as srun says it."""

    rank: int
    how: str

    @property
    def was_told(self) -> bool:
        """Whether it ended as a worker does that was told to stop, or heard of that before it could listen."""
        return self.how in ("Exited with exit code 130", "User defined signal 1")

    @property
    def never_lived(self) -> bool:
        """Whether it did not start. srun then waits for the others, which wait for it."""
        return self.how.startswith("launch failed")


def shown(text: str) -> Job:
    """What `scontrol show job --oneliner` prints of one job. Raises ValueError if that is something else."""
    fields = dict(word.partition("=")[::2] for word in text.split() if "=" in word)
    if "JobState" not in fields:
        raise ValueError(f"this is no job: {text[:80]!r}")
    said = {name: value for name, value in fields.items() if value not in ("None", "(null)")}
    return Job(said["JobState"], said.get("Reason", ""), int(said.get("Restarts", "0")), said.get("NodeList", ""))


def accounted(text: str) -> Job | None:
    """What `sacct --noheader --parsable2 --allocations --format=State` prints of one job; None: it knows nothing."""
    words = text.split()  # "CANCELLED by 1000"
    return Job(words[0]) if words else None


def deaths(text: str) -> list[Death]:
    """Of the tasks that srun says ended badly, since the job's last start: one for each time that it said so, in order.
    `text` is what the job itself printed."""
    last = text.rpartition(_STARTS)[2]
    told = re.findall(r"^srun: error: (?:\S+: )?tasks? (\d+)[-,\d]*:? (.+)$", last, re.MULTILINE)
    return [Death(int(rank), how.strip()) for rank, how in told]


def first_death(text: str) -> Death | None:
    """The first of `deaths`."""
    return next(iter(deaths(text)), None)


def was_told(text: str) -> bool:
    """Whether any task ended because it was told to. Of others srun may have heard before: who hands features to a
    drafter that has ended dies of it."""
    return any(death.was_told for death in deaths(text))


def ran_out_of_memory(text: str) -> bool:
    """Whether a node ended any task for the memory that it took. The job has then failed as far as Slurm is concerned:
    OUT_OF_MEMORY is one whose script is ended."""
    return any(death.how == "Out Of Memory" for death in deaths(text))


def lost_node(text: str) -> str | None:
    """What srun says of a node that is down, or was and has no step any more, since the job's last start."""
    last = text.rpartition(_STARTS)[2]
    said = re.search(r"^srun: error: (Node failure on .+|.*missing step on node \d+)$", last, re.MULTILINE)
    return said[1] if said else None


def submission(
    declared: Slurm, name: str, config: TrainConfig, folder: Path, words: Sequence[str], stop: Path
) -> list[str]:
    """The command that submits a job with a task of `words` for each worker; its output goes to `folder`.

    Slurm replaces patterns as %t in names of files, so that a % of the folder's own is written twice. Raises UsageError
    for workers that the nodes can not share evenly.
    """
    per_node = workers_per_node(declared, config.topology)
    place = str(folder).replace("%", "%%")
    batch = [
        "sbatch",
        "--parsable",
        f"--job-name={name}",
        "--requeue",
        "--open-mode=append",
        f"--output={place}/%j.log",
    ]
    batch += [f"--nodes={declared.nodes}", f"--ntasks-per-node={per_node}", "--export=ALL"]
    batch += [f"--cpus-per-task={declared.cpus_per_worker}", f"--signal=USR1@{declared.save_s}"]
    if config.device == "cuda":
        batch.append("--gpus-per-node=" + ":".join(filter(None, [declared.gpu_type, str(per_node)])))
    named = {"partition": declared.partition, "account": declared.account, "qos": declared.qos}
    named |= {"constraint": declared.constraint, "time": declared.time_limit, "mem": declared.memory}
    batch += [f"--{option}={value}" for option, value in named.items() if value]
    step = ["--kill-on-bad-exit=1", "--input=none", "--open-mode=append", f"--output={place}/%j-%t.log"]
    step += [f"--cpus-per-task={declared.cpus_per_worker}", "--distribution=block"]
    return [*batch, *declared.options, str(folder / "job.sh"), str(stop), *step, *words]


def workers_per_node(declared: Slurm, topology: Topology) -> int:
    """Raises UsageError for workers that the nodes can not share evenly, or a target that would be on two of them."""
    count, rest = divmod(topology.size, declared.nodes)
    torn = [group for group in topology.target_groups if count and group[0] // count != group[-1] // count]
    if rest or torn:
        whole = f", with the {topology.target_gpus} of each target on one" if torn and not rest else ""
        what = f"{topology.size} workers can not be shared out evenly over {declared.nodes} nodes{whole}"
        raise UsageError(what, where="launcher.nodes", cure="choose another number of nodes, or another train.topology")
    return count


_PASSED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_\w+|TZ|TMPDIR|LIBRARY_PATH|CPATH|PYTHON\w+|(?:UCX|FI)_\w+|SLURM_CONF|SBATCH_\w+"
)


def environment(environ: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job: what programs need, what changes how something is computed, and the step's `own`.

    No more, since Slurm keeps it in files: so no secrets. And nothing of what an allocation that this runs in says of
    itself, which Slurm's programs would take for options.
    """
    computing = {name: value for name, value in kept(environ).items() if value != HIDDEN}
    around = {name: value for name, value in computing.items() if not name.startswith("SLURM_")}
    return {name: value for name, value in environ.items() if _PASSED.fullmatch(name)} | around | dict(own)


_UNREACHED = re.compile("contact slurm controller|Socket timed out|Connection refused")


class Queue:
    """The user's jobs of one `name`. Slurm knows those that have ended for minutes, and longer if it has accounting."""

    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        """`environ` is that of jobs."""
        self.name, self._environ = name, environ
        if not shutil.which("sbatch"):
            raise UsageError(
                "this machine has no sbatch",
                where="launcher: slurm",
                cure="start the run on a machine from which jobs are submitted, or choose another launcher",
            )

    def find(self) -> tuple[str, str] | None:
        """The number and the state of a job that waits, runs or is just ending. Raises StepFailed: Slurm can not be
        reached."""
        found = self._ask("squeue", "--me", "--noheader", f"--name={self.name}", "--format=%A %T")
        if found.returncode:
            raise lost(f"Slurm can not be asked: {_line(found)}")
        lines = sorted((line.split() for line in found.stdout.splitlines()), key=lambda words: words[1] == ENDING)
        return (lines[0][0], lines[0][1]) if lines else None

    def submit(self, command: Sequence[str]) -> str:
        """The number of a new job. Raises UsageError: Slurm refuses it. StepFailed: it can not be reached."""
        done = self._ask(*command)
        if done.returncode and _UNREACHED.search(done.stderr):
            raise lost(f"Slurm can not be reached: {_line(done)}")
        if done.returncode:
            cure = "look at the step's launcher in the pipeline"
            raise UsageError(f"Slurm refuses the job: {_line(done)}", where="launcher: slurm", cure=cure)
        return done.stdout.strip().partition(";")[0]  # a cluster's name follows

    def job(self, number: str) -> Job | None:
        """How a job stands; None: Slurm did not answer. One that it knows no more has ended, nobody knows how."""
        told = self._ask("scontrol", "show", "job", "--oneliner", number)
        if told.returncode == 0:
            return shown(told.stdout)
        if "Invalid job id" not in told.stderr:
            return None
        kept = self._ask("sacct", "--noheader", "--parsable2", "--allocations", "--format=State", f"--jobs={number}")
        return (accounted(kept.stdout) if kept.returncode == 0 else None) or Job("REVOKED")

    def signal(self, number: str) -> None:
        """Have the workers save and end. A job without workers yet hears nothing of it."""
        self._ask("scancel", "--signal=TERM", number)

    def cancel(self) -> None:
        """End all jobs of the name, waiting or running."""
        self._ask("scancel", "--me", f"--name={self.name}")

    def _ask(self, *command: str) -> subprocess.CompletedProcess[str]:
        environ = {**self._environ, "LC_ALL": "C"} if command[0] != "sbatch" else self._environ
        # A session of its own: a Ctrl-C at the terminal must not cut a submission in two.
        return subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, start_new_session=True
        )


def lost(what: str) -> StepFailed:
    """What failed because a machine is not there any more: worth another attempt (policy.REASONS)."""
    return StepFailed(
        what, status=HostError.exit_code, cure="run again to go on from the last checkpoint", reason="lost"
    )


def _line(done: subprocess.CompletedProcess[str]) -> str:
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return said[-1].strip() if said else f"{done.args[0]} ended with status {done.returncode}"
