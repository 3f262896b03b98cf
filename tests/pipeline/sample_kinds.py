"""Small kinds of steps that really write, wait, fail and leave processes behind."""

from __future__ import annotations

import base64
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
from urllib.parse import quote, quote_plus

from dflash.errors import DataError
from dflash.hosts.failures import LostConnection
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
class WorkConfig:
    """`tally` is a file that gets a line for each beginning and each end; the first `fails` attempts fail by `fault`.
    `tells` is a variable whose value it says in every way there is."""

    label: str = ""
    seconds: float = 0.0
    tally: str = ""
    fails: int = 0
    fault: str = "raise"
    tells: str = ""


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
    elif fault == "lost":
        raise LostConnection("the stream broke", layer="ssh:gpu1")
    elif fault == "flood":
        for _ in range(500):
            os.write(2, b"a line of a log that is long enough to be one of many\n" * 1200)
        os.write(2, f"the end {os.environ['PUSH_TOKEN']}\n".encode())
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


def _work(step: StepInputs) -> dict:
    config = step.config
    if _begun(config) <= config.fails:
        _misbehave(config.fault, step.out)
    said = _tell(step, os.environ[config.tells]) if config.tells else None
    until = time.monotonic() + config.seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.02))
    made = [config.label, *((folder / "made.txt").read_text() for _, folder in sorted(step.inputs.items()))]
    (step.out / "made.txt").write_text(" ".join(made))
    if config.tally:
        with open(config.tally, "a") as tally:
            tally.write(f"end {config.label}\n")
    return {"label": config.label, "said": said}


def _begun(config: WorkConfig) -> int:
    """Which execution this is, as the tally has it."""
    if not config.tally:
        return 1
    line = f"begin {config.label}\n"
    with open(config.tally, "a") as tally:
        tally.write(line)
    return Path(config.tally).read_text().splitlines(keepends=True).count(line)


def _tell(step: StepInputs, value: str) -> dict:
    encoded = base64.b64encode(value.encode()).decode()
    for piece in (value[:3], value[3:] + "\n"):  # in two writes
        os.write(2, piece.encode())
        time.sleep(0.1)
    print(repr(value), json.dumps(value), encoded, base64.b64encode(f"ann:{value}".encode()).decode())
    print(f"https://ann:{quote(value, safe='')}@example.org/{quote_plus(value)}")
    subprocess.run([sys.executable, "-c", f"import os; print(os.environ[{step.config.tells!r}])"], check=True)
    step.progress.note(f"it is {value}")
    step.progress.update(1, 2, {value: value, "bytes": encoded})
    if step.config.fault == "tell":
        raise DataError(f"{value} was refused", where=value, cure=f"not {value}")
    return {value: [value, encoded]}


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
        StepKind(
            "train",
            TrainConfig,
            _train,
            takes=("target",),
            sources=("errors.py",),
            gpu=lambda config: config.gpus > 0,
            launches=True,
        ),
        StepKind("work", WorkConfig, _work, takes_needs=True),
        StepKind("evaluate", EvaluateConfig, _evaluate, takes=("train",)),
    )
}
