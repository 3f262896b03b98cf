"""What the hosts of a training have to share, which share no folder: what it reads, and the newest checkpoint."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dflash.compilation.cachekey import read_key
from dflash.compilation.parcels import wanted
from dflash.errors import CheckpointError
from dflash.hosts import files
from dflash.hosts.connection import Connection
from dflash.pipeline.belongings import Belonging, parcel
from dflash.pipeline.files import canonical, digest
from dflash.pipeline.launchers.launcher import TrainingJob
from dflash.pipeline.launchers.post import Post, bring, checkpoints_at, fetch_checkpoint, take_usage
from dflash.progress import Progress
from dflash.training.checkpoints import read
from dflash.training.usage import USAGE, drop_after, files_of

Opened = tuple[Connection, Post]


def supply(opened: Sequence[Opened], job: TrainingJob, progress: Progress) -> list[dict[str, str]]:
    """Have what the training reads at each post; for each the paths there, by `target`, `rows`, `heldout`, `cache` and,
    where the drafter begins with one, `start`.

    Raises:
        UsageError: something was changed meanwhile. StorageError: it can not be read. HostError: a host.
    """
    settings = {"target": job.target, "rows": job.rows, "heldout": job.heldout, "start": job.config.start}
    found = [Belonging(name, str(place)) for name, place in settings.items() if place]
    here = {each.setting: each.name for each in found}
    parcels = {} if all(post.is_here for _, post in opened) else {each: parcel(each) for each in found}
    places = [
        here.copy() if post.is_here else bring(connection, post, parcels, progress) for connection, post in opened
    ]
    with _worth_keeping(job) as cache:
        for (connection, post), paths in zip(opened, places, strict=True):
            paths["cache"] = str(job.cache)
            if cache and not post.is_here:
                key = digest(canonical(read_key(job.cache).key))[:16]
                paths["cache"] = f"{post.root}/hosted/cache/{key}/{job.cache.name}"
                files.put(connection, cache, paths["cache"])  # file by file: what was damaged there is sent again
    return places


@contextmanager
def _worth_keeping(job: TrainingJob) -> Iterator[Path | None]:
    """The files of a compile cache that another host can use, as the vault picks them, in a folder; None where nothing
    was compiled."""
    names = wanted(job.cache) if job.cache.is_dir() else []
    with linked(job.cache, names, job.out / "scratch" / "cache") as folder:
        yield folder if names else None


@contextmanager
def linked(source: Path, names: Iterable[str], folder: Path) -> Iterator[Path]:
    """Some files of `source` in a `folder` on the same disk, so that they can be sent at once."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(source / name, folder / name)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def share_checkpoint(opened: Sequence[Opened], out: Path, lead: Post, progress: Progress) -> None:
    """Have the newest checkpoint that is whole, wherever it is, in the step's folder `out` and at every post; and what
    was logged up to it where it is written on: the figures at `lead`, what a worker noted of itself at its own post.

    Raises:
        HostError: a host. StorageError: it can not be written here.
    """
    name = _newest(opened, out, progress)
    elsewhere = [each for each in opened if not each[1].is_here]
    for connection, post in elsewhere:
        take_usage(connection, post, out)
    workers = max(post.ranks.stop for _, post in opened)
    drop_after(out / USAGE, int(name.removeprefix("step-")) if name else 0, workers)
    if name is None:
        return
    for connection, post in elsewhere:
        place = f"scratch/checkpoints/{name}"
        files.put(connection, out / place, f"{post.out}/{place}")
        if post is lead and (out / "metrics.jsonl").exists():
            files.put(connection, out / "metrics.jsonl", f"{post.out}/metrics.jsonl")
        if noted := files_of(out / USAGE, post.ranks):
            with linked(out / USAGE, noted, out / "scratch" / USAGE) as folder:
                files.put(connection, folder, f"{post.out}/{USAGE}")


def _newest(opened: Sequence[Opened], out: Path, progress: Progress) -> str | None:
    """The name of the newest whole checkpoint, which is in `out` then."""
    folder = out / "scratch" / "checkpoints"
    there = {post.host.name: checkpoints_at(connection, post) for connection, post in opened if not post.is_here}
    names = {path.name for path in folder.glob("step-*")}.union(*there.values())
    for name in sorted(names, reverse=True):
        if _is_whole(folder / name, progress):
            return name
        for connection, post in opened:
            if name in there.get(post.host.name, ()):
                fetch_checkpoint(connection, post, name, out)
                if _is_whole(folder / name, progress):
                    progress.note(f"train: took checkpoint {name} from {post.host.name}")
                    return name
    return None


def _is_whole(folder: Path, progress: Progress) -> bool:
    if not folder.exists():
        return False
    try:
        read(folder)
    except CheckpointError as damage:
        progress.note(str(damage))
        return False
    return True
