"""What the verb split does: both roles of a pipeline's training measured on one device, and the split that follows."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dflash.cli import load, print_json
from dflash.cli_prewarm import ERRORS, request_of, rooted
from dflash.errors import DFlashError, UsageError
from dflash.training.config import Topology
from dflash.training.costs import ALIKE, Cost, Figures, costs, proposal

if TYPE_CHECKING:
    from dflash.hosts.connection import Connection
    from dflash.hosts.inventory import Host

GB_PER_S = 300.0
"""What a GPU of an NVLink host sends while gradients are summed, where nobody says better: two thirds of the 450 GB/s
each way of NVIDIA's H100 and H200."""


def split(
    *,
    pipeline: str,
    host: str,
    environment: str,
    root: str,
    overrides: Sequence[str],
    workers: int,
    link: float,
    as_json: bool,
) -> None:
    """Measure on a host, and print what each split would cost and the settings of the one to use."""
    from dflash.cli_hosts import connected, hosts_of

    request = request_of(load(pipeline, overrides))
    topology = Topology(**request["train"]["topology"])
    if topology.target_gpus > 1:
        raise UsageError(
            "a target that is spread over GPUs can not be measured on one",
            where="train.topology.target_gpus",
            cure="set it to 1, if a GPU holds the target; else choose the split by hand",
        )
    workers = workers or topology.size
    if workers < 1:
        raise UsageError(f"is a number of workers, not {workers}", where="--workers", cure="give at least 1")
    if not link > 0:
        raise UsageError(f"is in gigabytes a second, not {link:g}", where="--link", cure="leave it out")
    hosts = [rooted(each, root) for each in hosts_of(host)]
    if len(hosts) > 1:
        raise UsageError("a split is measured on one host", where="--host", cure="name one")

    def measure(each: Host, connection: Connection) -> Figures:
        return measure_host(connection, each, environment, {**request, "link": link * 1e9})

    figures = connected(measure)(hosts[0])
    found = costs(figures, workers)
    best = proposal(found)
    if as_json:
        rows = [asdict(each) for each in found]
        print_json({"figures": asdict(figures), "costs": rows, "proposal": best and asdict(best.topology)})
    else:
        for line in table(figures, found):
            print(line)
        if request["train"]["device"] == "cpu":
            print("On a CPU workers share the processors: this is as if each had one to itself.")
        for line in advice(found, best):
            print(line)
    if best is None:
        raise DFlashError(
            f"no way to share out {workers} workers fits the memory of a device",
            cure="lower train.rows or the longest of data.buckets, or choose a smaller target",
        )


def measure_host(connection: Connection, host: Host, environment: str, request: dict[str, Any]) -> Figures:
    """Measure there, saying on standard error what; the figures."""
    from dflash.environments.programs import HostPrograms

    figures: dict[str, Any] = {}

    def told(line: bytes) -> None:
        said = json.loads(line)
        figures.update(said.get("figures", {}))
        if "note" in said:
            print(f"{host.name}: measuring {said['note']}", file=sys.stderr, flush=True)

    programs = HostPrograms(connection, host, environment)
    stdin = json.dumps(request).encode()
    programs.run("dflash.training.measured", programs.root, errors=ERRORS, stdin=stdin, line=told)
    return Figures(**figures)


def table(figures: Figures, found: Sequence[Cost]) -> list[str]:
    """What was measured, and a line for each topology."""
    lines = [
        f"A micro-batch of {figures.tokens} tokens takes a target {figures.target_s * 1e3:.1f} ms and a drafter "
        f"{figures.draft_s * 1e3:.1f} ms; a step besides {figures.update_s * 1e3:.1f} ms.",
        f"{'targets + drafters':20}{'a step':>10}{'tokens/s':>12}{'targets':>10}{'drafters':>10}  memory",
    ]
    for each in found:
        targets, drafters = each.topology.targets, each.topology.drafters
        name = f"{drafters} colocated" if each.topology.colocated else f"{targets} + {drafters}"
        busy = f"{each.target_busy:>10.0%}{each.drafter_busy:>10.0%}"
        speed = f"{each.step_s * 1e3:>7.1f} ms{each.tokens_per_s:>12,.0f}"
        lines.append(f"{name:20}{speed}{busy}  {_memory(each, figures)}")
    return lines


def advice(found: Sequence[Cost], best: Cost | None) -> list[str]:
    """The settings to use; and those of colocated workers, where they are faster."""
    if best is None:
        return []
    lines = [settings(best.topology)]
    together = next(each for each in found if each.topology.colocated)
    gain = together.tokens_per_s / best.tokens_per_s - 1
    if together.fits is not False and gain > ALIKE:
        lines.append(
            f"Colocated would be {gain:.0%} faster, in steps of {together.topology.drafters} drafters instead of "
            f"{best.topology.drafters}: {settings(together.topology)}"
        )
    return lines


def settings(topology: Topology) -> str:
    """The words that choose `topology` for a run."""
    return f"--set train.topology.targets={topology.targets} --set train.topology.drafters={topology.drafters}"


def _memory(each: Cost, figures: Figures) -> str:
    if each.bytes is None or figures.memory_bytes is None:
        return "not measured"
    fits = "" if each.fits else ", does not fit"
    return f"{each.bytes / 2**30:.1f} of {figures.memory_bytes / 2**30:.1f} GiB{fits}"
