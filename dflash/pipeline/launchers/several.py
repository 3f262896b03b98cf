"""One torchrun on each of several hosts, which share no folder, as detached jobs."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from dflash.atomic import write_json
from dflash.errors import DFlashError, UsageError
from dflash.hosts import jobs
from dflash.hosts.command import Command, Script
from dflash.hosts.connection import Connection
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from dflash.pipeline import machines
from dflash.pipeline.launchers import held
from dflash.pipeline.launchers.config import Torchrun
from dflash.pipeline.launchers.launcher import TrainingJob
from dflash.pipeline.launchers.meeting import meeting
from dflash.pipeline.launchers.post import Post, checkpoints_at, fetch, fetch_checkpoint, post_of, take_usage, whose
from dflash.pipeline.launchers.sharing import are_together, room_of, shares
from dflash.pipeline.launchers.supplies import Opened, share_checkpoint, supply
from dflash.pipeline.launchers.watching import Member, Watch
from dflash.progress import Progress
from dflash.training.checkpoints import Checkpoints
from dflash.training.prewarm import cache_environment

PASSED = ("NCCL_", "GLOO_", "TORCH_NCCL_")
"""Variables of the step that its workers have, too, wherever they are."""


class SeveralHosts:
    """Each attempt is a fresh torchrun on each host."""

    def __init__(self, declared: Torchrun, hosts: Sequence[Host]) -> None:
        """`hosts` are those that are declared, as this machine reaches them; one of them may be this machine."""
        self._declared, self._hosts = declared, hosts

    def train(self, job: TrainingJob, progress: Progress) -> dict[str, Any]:
        """As `Launcher.train`. The training is gone on with from the newest whole checkpoint on any of the hosts, and
        what the writing host has made comes home into `job.out`, also after a stop, or when a worker died; and so does
        what all workers noted of themselves.

        Raises:
            UsageError: the workers do not fit the hosts, one is named twice, or the port is taken.
            Unreachable: the hosts do not reach each other. EnvironmentMismatch: a host has not got this environment.
            LostConnection: a host was not heard of for jobs.PATIENCE_S. HostError: a host, before the start.
        """
        topology = job.config.topology
        _refuse_twice(self._hosts)
        counts = shares(topology, room_of(self._hosts, job.config))
        if not are_together(topology, counts):
            progress.note(f"train: no host has room for all {topology.drafters} drafters: they sum over the network")
        ends = list(accumulate(counts))
        taken = [
            (host, range(end - count, end)) for host, count, end in zip(self._hosts, counts, ends, strict=True) if count
        ]
        _end_leftovers(job.out)
        with contextlib.ExitStack() as stack:
            opened: list[Opened] = []
            for host, ranks in taken:
                connection = stack.enter_context(reach(host.chain))
                opened.append((connection, post_of(connection, host, ranks, job.root, job.out)))
            address, interfaces = meeting(
                [(connection, post.python) for connection, post in opened], self._declared.port, self._declared.address
            )
            lead = next(post for _, post in opened if topology.drafter_ranks[0] in post.ranks)
            share_checkpoint(opened, job.out, lead, progress)
            places = supply(opened, job, progress)
            members = [Member(post, jobs.new_id()) for _, post in opened]
            _note(job.out, members)
            watch = Watch(members, job.config, progress)
            try:
                for node, (connection, post) in enumerate(opened):
                    spec = self._spec(job, places[node], post, node, len(opened), address)
                    environ = environment_of(post, places[node]["cache"], interfaces[node], job.env)
                    _start(connection, members[node], spec, environ)
            except BaseException:
                watch.end()
                raise
        try:
            result = watch.run()
        except BaseException:
            watch.end()  # an interrupt may come before it looks on
            with contextlib.suppress(DFlashError):  # what is not home yet is fetched when it is gone on with
                _bring_home(lead, job.out, [], progress)
            for member in members:
                if member.lost is None:  # what is at a host that is gone comes home when it is back
                    with contextlib.suppress(DFlashError):
                        _bring_usage(member.post, job.out)
            raise
        _bring_home(lead, job.out, ["draft"], progress)
        for member in members:
            try:
                _bring_usage(member.post, job.out)
                _clear(member.post)
            except DFlashError as failure:  # the drafter is here
                progress.note(f"train: what the workers of {member.post.host.name} noted is not here: {failure}")
        return result

    def _spec(
        self, job: TrainingJob, places: Mapping[str, str], post: Post, node: int, nodes: int, address: str
    ) -> dict[str, Any]:
        """As node.py takes it."""
        config = replace(job.config, start=places.get("start"))
        request = {"train": asdict(config), "out": post.out, "warm_only": True}
        request |= {name: places[name] for name in ("target", "rows", "heldout")}
        place = {"nodes": nodes, "node": node, "workers": len(post.ranks), "address": address}
        patience = {"patience_s": jobs.PATIENCE_S + held.MARGIN_S, "grace_s": held.SAVE_S}
        lock = {"lock": post.lock, "of": whose(job.root)}
        port = self._declared.port
        return {**lock, "folder": post.own, "request": request, **place, "port": port, **patience}


def _refuse_twice(hosts: Sequence[Host]) -> None:
    places = [(host.chain, host.root) for host in hosts]
    if again := [host.name for host in hosts if places.count((host.chain, host.root)) > 1]:
        what = f"{' and '.join(again)} are one host"
        raise UsageError(what, where="launcher.hosts", cure="name each once; its gpus say how many workers it gets")


def environment_of(post: Post, cache: str, interface: str, own: Mapping[str, str]) -> dict[str, str]:
    """The variables of a post's workers, the step's `own` among them."""
    passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED)}
    # A host's own name often means its loopback, at which gloo would then listen in vain.
    found = {"GLOO_SOCKET_IFNAME": interface} if interface else {}
    return {
        **{"OMP_NUM_THREADS": "1", **found, **passed, **own},
        **post.environment,
        **{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${rank}] "},
        **{"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_MODULES_CACHE": f"{post.root}/work/modules"},
        **cache_environment(Path(cache)),
    }


def _start(connection: Connection, member: Member, spec: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    post = member.post
    argv = [post.python, "-P", "-m", "dflash.pipeline.launchers.node"]
    script = Script("spec.json", json.dumps(spec).encode(), len(argv))
    jobs.start(connection, post.host, Command(argv, environ, post.root, script), member.job)


@held.persistent
def _bring_home(lead: Post, out: Path, names: Sequence[str], progress: Progress) -> None:
    """Have what the post that writes has made, the newest checkpoint and `names`, in the step's folder."""
    if lead.is_here:
        return
    with reach(lead.host.chain) as connection:
        for newest in checkpoints_at(connection, lead)[:1]:
            fetch_checkpoint(connection, lead, newest, out)
        fetch(connection, lead, names, out)
    Checkpoints(out / "scratch" / "checkpoints").prune(progress)


@held.persistent
def _bring_usage(post: Post, out: Path) -> None:
    """Have what the workers of a post noted of themselves in the step's folder."""
    if not post.is_here:
        with reach(post.host.chain) as connection:
            take_usage(connection, post, out)


def _clear(post: Post) -> None:
    """Leave nothing of a training that has come home at a post."""
    with reach(post.host.chain) as connection:
        connection.run(["rm", "-rf", post.own, *([] if post.is_here else [post.out])])


# --- a launcher that was killed leaves jobs behind, until their lease is over


def _notes(out: Path) -> Path:
    return out / "scratch" / "hosts.json"


def _note(out: Path, members: Sequence[Member]) -> None:
    """Write down, before they start, which jobs are where."""
    hosts = machines.to_json({member.job: member.post.host for member in members})
    _notes(out).parent.mkdir(parents=True, exist_ok=True)
    write_json(_notes(out), hosts)


def _end_leftovers(out: Path) -> None:
    """End the jobs of an attempt before that still run."""
    try:
        noted = machines.from_json(json.loads(_notes(out).read_bytes()))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return
    for job, host in noted.items():
        held.end(host, job)
    _notes(out).unlink()
