"""The kinds of step a pipeline can use: each a thin way from a declared config to one room.

Rooms are imported when a step runs, in the step's own process, so that planning imports no torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dflash.atomic import sha256
from dflash.errors import CompilationError
from dflash.pipeline.command import COMMAND
from dflash.pipeline.kinds import StepInputs, StepKind
from dflash.provision.checks.here import CheckConfig
from dflash.training import corpus
from dflash.training.config import (
    GRAPH_FIELDS,
    EvaluateConfig,
    ExportConfig,
    PrewarmConfig,
    TargetConfig,
    TrainConfig,
)
from dflash.training.dataconfig import HELDOUT, HELDOUT_ROWS, ROWS, DataConfig
from dflash.training.files import fingerprint

Result = dict[str, Any]


def _offline(step: Callable[[StepInputs], Result]) -> Callable[[StepInputs], Result]:
    """A step that uses transformers: nothing is asked of a hub, and nothing is written to the user's home."""

    def run(step_inputs: StepInputs) -> Result:
        os.environ["HF_HUB_OFFLINE"] = "1"
        os.environ["HF_MODULES_CACHE"] = str(step_inputs.root / "work" / "modules")
        from transformers.utils import logging

        logging.disable_progress_bar()
        return step(step_inputs)

    return run


def _check(step: StepInputs) -> Result:
    from dflash.provision.check import check, require
    from dflash.provision.table import lines_of

    result = check(step.config, step.root, step.progress)
    for line in lines_of(result):
        step.progress.note(line)
    require(result)
    return result


def _target(step: StepInputs) -> Result:
    if step.config.folder:
        from dflash.model.target import target_config

        target_config(Path(step.config.folder))
        return {"folder": step.config.folder}
    from dflash.training.bytelm import train_target

    return train_target(step.config, step.out, step.progress)


def _model(step: StepInputs) -> Path:
    """The target's folder: what the target step made, or the one it was shown."""
    return Path(step.results["target"].get("folder") or step.inputs["target"] / "model")


def _data(step: StepInputs) -> Result:
    from dflash.training.dataset import build_dataset

    return build_dataset(step.config, _model(step), step.out, step.progress, step.root / "work" / "encoded")


def _prewarm(step: StepInputs) -> Result:
    from dflash.compilation.vault import Vault, vault_folder
    from dflash.model.target import target_config
    from dflash.training.drafts import prove_layout
    from dflash.training.graphset import GraphSet
    from dflash.training.prewarm import prewarm

    target = target_config(_model(step))
    graphs = GraphSet.of(step.borrowed, target, step.results["data"]["buckets"], step.layout)
    with ThreadPoolExecutor(1) as pool:  # while other processes compile
        exported = pool.submit(prove_layout, target, step.borrowed, step.out)
        report = prewarm(graphs, step.out, step.progress, Vault(vault_folder(step.root)))
        exported.result()
    return report


def _train(step: StepInputs) -> Result:
    from dflash.training.prewarm import CACHE, use_cache

    cache = step.inputs["prewarm"] / CACHE
    use_cache(cache)
    from dflash.compilation.cachekey import revoke_key
    from dflash.pipeline.launchers.launcher import TrainingJob, launcher_for
    from dflash.training.usage import USAGE, busy_by_role, workers_in

    rows, heldout = step.inputs["data"] / ROWS, step.inputs["data"] / HELDOUT_ROWS
    job = TrainingJob(step.config, _model(step), rows, heldout, step.out, cache, step.root, step.env)
    try:
        result = launcher_for(step.launcher, step.hosts).train(job, step.progress)
    except CompilationError:
        revoke_key(cache)  # an output of the pre-warm: the next run finds it gone, and pre-warms again
        raise
    busy = busy_by_role(workers_in(step.out / USAGE))
    return {**result, "busy": {role: round(share, 3) for role, share in busy.items()}}


def _evaluate(step: StepInputs) -> Result:
    from dflash.training.evaluation import evaluate

    prompts = step.inputs["data"] / HELDOUT
    return evaluate(step.config, _model(step), step.inputs["train"] / "draft", prompts, step.progress)


def _export(step: StepInputs) -> Result:
    from dflash.model.layout import publish

    return publish(step.inputs["train"] / "draft", step.out)


def _corpus(config: TargetConfig | DataConfig) -> dict[str, str]:
    return {"corpus": corpus.digest(corpus.standard_library(config.corpus_bytes))}


WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
"""Files too large to hash at each plan; all others may decide the result (a tokenizer is larger than a megabyte)."""


def _target_sources(config: TargetConfig) -> dict[str, str]:
    """The corpus, or what names a model folder's contents."""
    if config.folder is None:
        return _corpus(config)
    return _folder(config.folder)


def _start_sources(config: TrainConfig) -> dict[str, str]:
    return _folder(config.start) if config.start else {}


def _folder(folder: str) -> dict[str, str]:
    """Each file's bytes, but of weights the size alone. Raises OSError for a folder that is not there."""
    os.listdir(folder)  # a pattern below it would just find nothing
    files = sorted(path for path in Path(folder).glob("*") if path.is_file())
    return {path.name: f"{path.stat().st_size} bytes" if path.suffix in WEIGHTS else sha256(path) for path in files}


def _data_sources(config: DataConfig) -> dict[str, str]:
    return _corpus(config) | (fingerprint(config.file) if config.file else {})


def _machine(config: PrewarmConfig) -> dict[str, str]:
    from dflash.compilation.ingredients import machine

    return machine()


def _on_gpu(config: TrainConfig | EvaluateConfig) -> bool:
    return config.device == "cuda"


def _answers_on_gpu(config: DataConfig) -> bool:
    return config.device == "cuda" and config.file is None and config.server is None


MODEL = ("model", "training", "compilation")
"""What decides the result of a step that touches a model. Coarse on purpose: a skip must never be wrong."""

KINDS: dict[str, StepKind] = {
    kind.name: kind
    for kind in (
        StepKind("check", CheckConfig, _check, cached=False, describes="judge the machine and the environment"),
        StepKind(
            "target",
            TargetConfig,
            _offline(_target),
            sources=MODEL,
            fingerprint=_target_sources,
            fingerprint_of=("folder", "corpus_bytes"),
            paths=("folder",),
            describes="train a small byte-level target, or take a model folder",
        ),
        StepKind(
            "data",
            DataConfig,
            _offline(_data),
            takes=("target",),
            sources=MODEL,
            fingerprint=_data_sources,
            fingerprint_of=("file", "corpus_bytes"),
            paths=("file",),
            gpu=_answers_on_gpu,
            describes="let the target answer prompts; pack rows",
        ),
        StepKind(
            "prewarm",
            PrewarmConfig,
            _offline(_prewarm),
            takes=("target", "data"),
            borrows=(*GRAPH_FIELDS, "compile"),
            fingerprint=_machine,
            fingerprint_of=(),
            sources=MODEL,
            describes="compile the closed set of graphs and prove it",
        ),
        StepKind(
            "train",
            TrainConfig,
            _offline(_train),
            takes=("target", "data", "prewarm"),
            sources=MODEL,
            fingerprint=_start_sources,
            fingerprint_of=("start",),
            paths=("start",),
            gpu=_on_gpu,
            launches=True,
            describes="train the drafter",
        ),
        StepKind(
            "evaluate",
            EvaluateConfig,
            _offline(_evaluate),
            takes=("target", "data", "train"),
            sources=MODEL,
            gpu=_on_gpu,
            describes="decode held-out prompts with the drafter",
        ),
        StepKind(
            "export",
            ExportConfig,
            _offline(_export),
            takes=("train",),
            sources=MODEL,
            describes="write the published layout and prove it",
        ),
        COMMAND,
    )
}
