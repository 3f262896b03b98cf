"""What a pipeline needs of the engine that runs it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from dflash.errors import UsageError
from dflash.pipeline.launchers.config import Slurm, Torchrun
from dflash.pipeline.schema import Pipeline, Step
from dflash.pipeline.stopping import limits_after, patience_s

PYTHON, PROJECT, ROOT, FILE = "/opt/env/bin/python", "/opt/dflash", "/work", "/etc/dflash/pipeline.yaml"
"""The image's Python and this project in it (docker/train.Dockerfile), where the volume with all that a run keeps is,
and where the pipeline's file is."""


@dataclass(frozen=True)
class Needs:
    """`gpus` of one node; `secrets` that steps name; `restarts` that the pipeline's policies have for a lost machine,
    which its runner, on that machine, can not make itself. `patience_s` is how long it takes at most to end when it is
    told to."""

    name: str
    gpus: int
    secrets: tuple[str, ...]
    restarts: int
    patience_s: float


def needs_of(pipeline: Pipeline) -> Needs:
    """Raises UsageError for what names machines, or paths of this one: another engine has others."""
    for step in pipeline.steps:
        _check(step, pipeline.file)
    return Needs(
        name=pipeline.name,
        gpus=max(map(_gpus, pipeline.steps)),
        secrets=tuple(sorted({name for step in pipeline.steps for name in step.secrets})),
        restarts=max(step.retry.attempts - 1 if "lost" in step.retry.on else 0 for step in pipeline.steps),
        patience_s=patience_s(limits_after(step.limits).timeout_s or 0 for step in pipeline.steps if step.is_last),
    )


def check_image(image: str) -> None:
    """Raises UsageError for an image that is not named by its digest: a tag is another image tomorrow."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._:/-]*@sha256:[0-9a-f]{64}", image, re.ASCII):
        cure = "name it as REPOSITORY@sha256:…, which ./inv build --push prints"
        raise UsageError(f"{image!r} is no image by its digest", where="--image", cure=cure)


def check_volume(volume: str) -> None:
    """Raises UsageError for a volume without a name."""
    if not volume:
        raise UsageError("it has no name", where="--volume", cure="name the volume that keeps what a run makes")


def _check(step: Step, file: str) -> None:
    where = f"{file}: step {step.name}"
    if step.host is not None:
        raise UsageError(f"it runs on {step.host}, which the engine does not know", where=where, cure="remove its host")
    if isinstance(step.launcher, Slurm) or (isinstance(step.launcher, Torchrun) and step.launcher.hosts):
        cure = "export it with launcher: torchrun, or run it with ./inv train where its machines are"
        raise UsageError("its launcher names machines of its own", where=where, cure=cure)
    paths = [(name, getattr(step.config, name)) for name in step.kind.paths]
    for name, path in [*paths, *(("inputs", each) for each in step.inputs)]:
        if path and not Path(path).is_absolute():
            cure = f"put it on the engine's volume, and name it as {ROOT}/…"
            raise UsageError(f"{name} is {path!r}, a path of this machine", where=where, cure=cure)


def _gpus(step: Step) -> int:
    if step.kind.gpu is None or not step.kind.gpu(step.config):
        return 0
    topology = getattr(step.config, "topology", None)
    return topology.size if topology is not None else 1
