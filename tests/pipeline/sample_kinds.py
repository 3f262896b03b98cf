"""Small kinds of steps that really write, wait, fail and leave processes behind."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from dflash.errors import DataError
from dflash.pipeline.kinds import StepInputs, StepKind


@dataclass(frozen=True)
class CheckConfig:
    min_disk_gib: float = 0.0


@dataclass(frozen=True)
class TextConfig:
    text: str = "hello"
    corpus: str | None = None


@dataclass(frozen=True)
class Optimizer:
    lr: float = 1e-3
    betas: tuple[float, ...] = (0.9, 0.95)


@dataclass(frozen=True)
class TrainConfig:
    steps: int = 5
    seconds: float = 0.0
    optimizer: Optimizer = field(default_factory=Optimizer)
    devices: tuple[str, ...] = ()
    gpus: int = 0
    fault: str = ""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError("steps must be at least 1")


@dataclass(frozen=True)
class WarmConfig:
    for_step: str = "train"


@dataclass(frozen=True)
class EvaluateConfig:
    prompts: int = 2


def _check(step: StepInputs) -> dict:
    print("printed on standard output, which is the step's log")
    return {"ok": True}


def _target(step: StepInputs) -> dict:
    (step.out / "text.txt").write_text(step.config.text)
    return {"characters": len(step.config.text)}


def _prewarm(step: StepInputs) -> dict:
    (step.out / "warm.json").write_text(json.dumps({"steps": step.borrowed.steps}))
    return {"warm_for": step.borrowed.steps}


def _train(step: StepInputs) -> dict:
    _misbehave(step.config.fault, step.out)
    scratch = step.out / "scratch"
    scratch.mkdir(exist_ok=True)
    checkpoint = scratch / "checkpoint"
    start = int(checkpoint.read_text()) if checkpoint.exists() else 0
    step.progress.note(f"starts at {start}")
    rows = []
    done = start
    try:
        for number in range(start, step.config.steps):
            time.sleep(step.config.seconds)
            row = {"step": number, "loss": 5.0 / (number + 1), "accuracy": [0.5, 0.25], "accept_len": 1.5}
            rows.append(row)
            metrics = {"loss": row["loss"], "accuracy": row["accuracy"], "tokens_per_s": 1234.0}
            done = number + 1
            step.progress.update(done, step.config.steps, metrics)
    except KeyboardInterrupt:
        checkpoint.write_text(str(done))
        raise
    (step.out / "model.txt").write_text((step.inputs["target"] / "text.txt").read_text().upper())
    (step.out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    loss = float("nan") if step.config.fault == "nan" else 0.0
    return {"started_at": start, "target": step.results["target"], "loss": loss}


def _misbehave(fault: str, out: Path) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    if fault == "hang":
        threading.Thread(target=time.sleep, args=(60,)).start()
    elif fault == "leave":
        subprocess.Popen(sleep)
        subprocess.Popen(sleep, start_new_session=True)
    elif fault == "raise":
        raise RuntimeError("a bug in the step")
    elif fault == "data":
        raise DataError("this line is not JSON", where="corpus.jsonl:3", cure="remove it")
    elif fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "exit":
        os._exit(9)
    elif fault == "memory":
        raise MemoryError
    elif fault == "denied":
        raise PermissionError(errno.EACCES, "Permission denied", str(out / "model.txt"))
    elif fault == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
    elif fault == "fill":
        (out / "model.txt").write_bytes(bytes(64 << 20))
    elif fault == "fill unsaid":  # as a compiler does, which a library starts, whose exception then says nothing
        with contextlib.suppress(OSError):
            (out / "model.txt").write_bytes(bytes(64 << 20))
        raise RuntimeError("the compiler ended with status 1")
    elif fault == "rust":
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")


def _evaluate(step: StepInputs) -> dict:
    (step.out / "evaluation.json").write_text("{}")
    return {
        "acceptance_length": 2.5,
        "acceptance_length_untrained": 1.0,
        "greedy_identical": step.config.prompts,
        "greedy_total": step.config.prompts,
    }


def _corpus(config: TextConfig) -> dict[str, str]:
    if config.corpus is None:
        return {}
    return {"corpus": hashlib.sha256(Path(config.corpus).read_bytes()).hexdigest()}


KINDS = {
    kind.name: kind
    for kind in (
        StepKind("check", CheckConfig, _check, cached=False, describes="Look at the machine."),
        StepKind("target", TextConfig, _target, sources=("errors.py",), fingerprint=_corpus, paths=("corpus",)),
        StepKind("prewarm", WarmConfig, _prewarm, borrows=("steps", "optimizer.betas")),
        StepKind("train", TrainConfig, _train, takes=("target",), gpu=lambda config: config.gpus > 0, launches=True),
        StepKind("evaluate", EvaluateConfig, _evaluate, takes=("train",)),
    )
}
