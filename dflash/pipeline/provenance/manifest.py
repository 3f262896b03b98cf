"""The provenance of a run, as its record keeps it: a map of parts, of which some are known when it begins, and some
when a step has finished.

    source        commit, remote, dirty, patch and digest of this project's source (dflash/pipeline/source.py)
    environment   lock, packages, Python; of an image digest, base, commit and builder
    libraries     by step, SHA-256 of the libraries that its processes had loaded at its end
    gpus          models, driver, topology; CUDA, NCCL and cuDNN as torch says; the processor
    variables     of the runner, and by step; by allow-list
    seeds         by step, and the flags that decide which kernels run
    config        the pipeline's text, overrides and command line; by step, the resolved configuration
    data          by step, SHA-256 of each file that it reads
    cache         by step, the vault's snapshot and the hit rate of what it compiled
    metrics       by step, how many rows there are and a hash of what they say
    artifacts     by step, SHA-256 of each output, and of the tensors in it
    predecessor   the run that this one goes on with, or does again

None: not known.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dflash.pipeline.files import canonical, digest
from dflash.pipeline.plan import Plan
from dflash.pipeline.provenance import machine
from dflash.pipeline.provenance.artifacts import artifacts, metrics
from dflash.pipeline.provenance.data import data
from dflash.pipeline.provenance.environment import environment
from dflash.pipeline.provenance.hashes import Hashes
from dflash.pipeline.provenance.image import with_build
from dflash.pipeline.provenance.variables import without_credentials
from dflash.pipeline.store import Done, observed_in
from dflash.validation import plain

_CACHE = ("snapshot", "hit_rate", "from_vault", "graphs")


def begun(plan: Plan, root: Path, kinds: str, known: Mapping[str, Any], text: str | None = None) -> dict[str, Any]:
    """The provenance of a run of `plan` that is about to begin here. `known` are parts, whole, that somebody else has
    told, such as its source; `text` is the pipeline's, as it was asked for: its file may be another machine's, or
    another now. Without it the file is read. Raises StorageError."""
    secrets = {name for each in plan.steps for name in each.step.secrets}
    found = machine.described(machine.here(), secrets)
    around = environment()
    around["image"] = with_build(around["image"], root)
    with Hashes(root) as hashes:
        read = data(plan, hashes)
    return {
        "source": None,
        "environment": {**around, **found["environment"]},
        "libraries": {},
        "gpus": found["gpus"],
        "variables": {**found["variables"], "steps": {}},
        "seeds": {"steps": _seeds(plan), "flags": {}},
        "config": _config(plan, kinds, text),
        "data": read,
        "cache": {},
        "metrics": {},
        "artifacts": {},
        "predecessor": None,
        **known,
    }


def add(provenance: dict[str, Any], step: str, done: Done, folder: Path) -> None:
    """What a finished step's process saw, and what it made, whether it ran in this run or before. Raises OSError."""
    observed = observed_in(folder)
    if observed:
        provenance["libraries"][step] = observed["libraries"]
        provenance["variables"]["steps"][step] = {**observed["variables"], **observed["workers"]}
    if flags := observed.get("flags"):
        provenance["seeds"]["flags"][step] = flags
    if torch := observed.get("torch"):
        provenance["gpus"] |= {name: torch[name] for name in ("cuda", "nccl", "cudnn") if torch.get(name)}
        provenance["environment"] |= {"torch_config": torch["config"]}
    if "hit_rate" in done.result:
        provenance["cache"][step] = {name: done.result.get(name) for name in _CACHE}
    with Hashes(folder.parents[2]) as hashes:
        provenance["artifacts"][step] = artifacts(folder, done, hashes)
        if rows := metrics(folder, hashes):
            provenance["metrics"][step] = rows


def _config(plan: Plan, kinds: str, text: str | None) -> dict[str, Any]:
    steps = {each.step.name: plain(each.step.kind.config, each.step.config) for each in plan.steps}
    pipeline = plan.pipeline
    return {
        "file": Path(pipeline.file).name,
        "text": Path(pipeline.file).read_text(encoding="utf-8") if text is None else text,
        "overrides": list(pipeline.overrides),
        "kinds": kinds,
        "argv": [without_credentials(word) for word in sys.argv],
        "digest": digest(canonical(steps)),
        "steps": steps,
    }


def _seeds(plan: Plan) -> dict[str, dict[str, Any]]:
    found = {each.step.name: dict(_named_seed(plain(each.step.kind.config, each.step.config))) for each in plan.steps}
    return {name: seeds for name, seeds in found.items() if seeds}


def _named_seed(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, each in value.items() if isinstance(value, Mapping) else ():
        inner = f"{path}.{name}" if path else str(name)
        if name == "seed":
            yield inner, each
        yield from _named_seed(each, inner)
