"""A host of a training on several: what it has to have before the start, and what comes home from it."""

from __future__ import annotations

import re
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from dflash.atomic import whole_file
from dflash.environments.remote import ID_LENGTH, HostEnvironments
from dflash.errors import EnvironmentMismatch
from dflash.hosts import files
from dflash.hosts.connection import Connection
from dflash.hosts.inventory import DEFAULT_ROOT, Host
from dflash.hosts.package import send_package
from dflash.pipeline.away import image_python
from dflash.pipeline.belongings import Belonging, Parcel, look, place_of, send
from dflash.pipeline.keys import stamped_lock
from dflash.pipeline.launching import owner
from dflash.pipeline.machines import is_here
from dflash.progress import Progress
from dflash.training.sampling import load_samples, samples_beside
from dflash.training.usage import USAGE, log_of, logs_in


@dataclass(frozen=True)
class Post:
    """A host at work, whose root is known: the Python and the source it runs with, its workers' `ranks`, and the
    training's folder there. On the machine of the step, `is_here`, that is the step's own."""

    host: Host
    python: str
    source: str
    ranks: range
    out: str
    is_here: bool

    @property
    def root(self) -> str:
        """Where this project keeps its own there."""
        assert self.host.root is not None
        return self.host.root

    @property
    def own(self) -> str:
        """The folder there of what only matters while it works: lease, stop and torchrun's logs."""
        return f"{self.out}/scratch/node" if self.is_here else f"{self.out}.node"

    @property
    def lock(self) -> str:
        """The file there that whoever works on this step at the host holds (`at_work` in node.py)."""
        place = PurePosixPath(self.out)
        return f"{self.root}/hosted/{place.parent.name}/{place.stem}.lock"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which its Python finds the source, and puts what it compiles where nothing is compared."""
        if not self.python.startswith(f"{self.root}/"):
            return {"PYTHONPATH": self.source, "PYTHONDONTWRITEBYTECODE": "1"}
        return {"PYTHONPATH": self.source, "PYTHONPYCACHEPREFIX": f"{self.root}/pycache"}  # a generation has none


def post_of(connection: Connection, host: Host, ranks: range, root: Path, out: Path) -> Post:
    """Have this package at a host, and find the environment there that is this one. `root` is the run's, `out` the
    step's folder.

    Raises:
        EnvironmentMismatch: it has not got it; names both. HostError: the host.
    """
    home, _ = look(connection, [])
    here = is_here(host, root)
    there = str(root) if here else host.root or DEFAULT_ROOT.replace("~", home, 1)
    place = str(out) if here else f"{there}/hosted/{out.parent.name}/{out.name}.{_own_word(out)}"
    python = python_at(connection, host)
    return Post(replace(host, root=there), python, send_package(connection, host), ranks, place, here)


def whose(root: Path) -> str:
    """What others are told of the run in `root` that works on a step at a host."""
    return f"a run of {owner()} in {root}"


def own_word_of(out: Path) -> Path:
    """The file of the word by which hosts tell a step's folder from any other of the same key: another run's, or one
    that was begun anew since its inputs had changed."""
    return out / "scratch" / "hosted"


def _own_word(out: Path) -> str:
    file = own_word_of(out)
    if not file.exists():
        with whole_file(file) as draft:
            draft.write_text(secrets.token_hex(4))
    return file.read_text()


def python_at(connection: Connection, host: Host) -> str:
    """The Python at a host of the environment that this process runs in: an image's, or a generation.

    Raises:
        EnvironmentMismatch: there is none of the same lock; names the host, this lock, and those that are there. This
            Python has no lock, so that no other can be known to be the same.
        HostError: the host.
    """
    if host.chain.is_local:
        return sys.executable
    lock = stamped_lock()[:ID_LENGTH]
    if not lock:
        cure = f"run this with the Python of one, which ./inv or ./inv env.create makes, not with {sys.executable}"
        what = "this Python is no environment of this project, so which one a host needs can not be told"
        raise EnvironmentMismatch(what, where=host.name, cure=cure)
    if python := image_python(connection, lock):
        return python
    rows = [row for row in HostEnvironments(connection, host).listed() if row["finished"]]
    fitting = [row for row in rows if row["id"].split("-")[0] == lock]
    if not fitting:
        there = ", ".join(f"{row['name']} {row['id']}" for row in rows) or "no environment"
        what = f"it has {there}, and this training runs in one of lock {lock}"
        cure = f"make it there: ./inv env.create NAME --host {host.name}"
        raise EnvironmentMismatch(what, where=f"{host.name} ({connection.layer})", cure=cure)
    best = max(fitting, key=lambda row: bool(row["current"]))
    return f"{best['path']}/bin/python"


def bring(
    connection: Connection, post: Post, parcels: Mapping[Belonging, Parcel], progress: Progress
) -> dict[str, str]:
    """Have what a training reads at a post, named by its content and sent only where it is missing; the path there by
    setting.

    Raises:
        UsageError: it was changed meanwhile. HostError: the host.
    """
    _, there = look(connection, [place_of(post.root, packed) for packed in parcels.values()])
    for belonging, packed in parcels.items():
        if not there[place_of(post.root, packed)]:
            progress.note(f"sending {belonging.name} to {post.host.name}")
            send(connection, post.root, belonging, packed)
    return {each.setting: f"{place_of(post.root, packed)}/{packed.named}" for each, packed in parcels.items()}


def checkpoints_at(connection: Connection, post: Post) -> Sequence[str]:
    """The names of the checkpoints at a post, whole or not, newest first."""
    listed = connection.run(["ls", f"{post.out}/scratch/checkpoints"]).stdout.decode(errors="replace").split()
    return sorted((name for name in listed if re.fullmatch(r"step-\d+", name)), reverse=True)


def fetch_checkpoint(connection: Connection, post: Post, name: str, out: Path) -> None:
    """Bring a checkpoint, and the figures up to it, from a post to the step's folder `out`. Raises as `fetch`."""
    files.get(connection, f"{post.out}/scratch/checkpoints/{name}", out / "scratch" / "checkpoints" / name)
    fetch(connection, post, ["metrics.jsonl"], out)


def fetch(connection: Connection, post: Post, names: Sequence[str], out: Path) -> None:
    """Bring those of `names` that are there from a post's folder to the step's, `out`.

    Raises HostError, or StorageError where it can not be written here.
    """
    _, there = look(connection, [f"{post.out}/{name}" for name in names])
    for name in names:
        if there[f"{post.out}/{name}"]:
            files.get(connection, f"{post.out}/{name}", out / name)


def take_usage(connection: Connection, post: Post, out: Path) -> None:
    """Bring what a post's workers noted of themselves to the step's folder `out`, and leave nothing of it there. What
    goes further in `out` stays: the workers may have been elsewhere since. Raises as `fetch`."""
    brought = out / "scratch" / "brought"
    shutil.rmtree(brought, ignore_errors=True)
    brought.mkdir(parents=True)
    fetch(connection, post, [USAGE], brought)
    for rank, log in logs_in(brought / USAGE).items():
        here = log_of(out / USAGE, rank)
        if _last_step(log) > _last_step(here):
            here.parent.mkdir(exist_ok=True)
            samples_beside(here).unlink(missing_ok=True)  # never of another log; without any they are made anew
            for file in (log, samples_beside(log)):
                if file.exists():
                    file.replace(here.parent / file.name)
    shutil.rmtree(brought, ignore_errors=True)
    connection.run(["rm", "-rf", f"{post.out}/{USAGE}"])


def _last_step(log: Path) -> int:
    samples = load_samples(log)
    return int(samples.last["step"]) if samples else 0
