"""A record that has everything, and rows of a training."""

from __future__ import annotations

from typing import Any

from dflash.pipeline.report.contents import Contents, Training
from dflash.pipeline.report.timeline import Span
from dflash.training.sampling import Sampler, Samples
from dflash.training.usage import Worker

BEGUN = 1_796_000_000.0


def attempt(number: int, started: float, seconds: float, status: str, reason: str | None = None) -> dict[str, Any]:
    """An attempt, `started` so many seconds after the run."""
    error = "step train: <its> machine was lost" if reason else None
    told = {"number": number, "started": BEGUN + started, "seconds": seconds, "status": status}
    return told | {"reason": reason, "exit_code": 255 if reason else None, "error": error}


def step(name: str, kind: str, status: str, *attempts: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A record's step."""
    return {
        "name": name,
        "kind": kind,
        "host": None,
        "launcher": None,
        "status": status,
        "started": attempts[0]["started"] if attempts else None,
        "seconds": sum(each["seconds"] for each in attempts),
        "peak_rss_mb": 4000.0,
        "why": ["config.steps: 300 -> <400>"],
        "folder": f"work/{kind}/0123456789abcdef",
        "result": None,
        "error": None,
        "attempts": list(attempts),
    } | more


COMPILED = {
    "worker": "drafter 5",
    "name": "draft_layer",
    "inputs": "(1, 256) float32",
    "seconds": 16.2,
    "compiled": True,
}
PREWARM = {
    "graphs": 6,
    "hit_rate": 1.0,
    "compile_s": 70.7,
    "proof_s": 11.1,
    "compiled": [COMPILED, {**COMPILED, "name": "score", "seconds": 1.4}, {**COMPILED, "compiled": False}],
    "cache_bytes": 5_564_284,
    "from_vault": False,
    "snapshot": "91862e611906f006",
}
TRAINED = {
    "warm_s": {"target 0": 4.3, "target 1": 0.1, "drafter 2": 1.3},
    "loss": 1.03,
    "step": 400,
    "tokens_per_s": 11_796.0,
    "busy": {"target": 0.62, "drafter": 0.98},
    "cache": {"autograd_hits": 6, "autograd_misses": 0},
}
EVALUATED = {
    "acceptance_length": 2.41,
    "prompts": 24,
    "tokens": 3072,
    "speedup": 1.75,
    "plain_tokens_per_s": 262.0,
    "speculative_tokens_per_s": 459.0,
    "accepted_by_slot": [0.61, 0.69, 0.9, None],
    "acceptance_by_prompt": [1.5, 8.0, 5.3],
}
RECORD: dict[str, Any] = {
    "id": "20261129T163012-local",
    "pipeline": "local",
    "host": "local",
    "status": "ok",
    "started": "2026-11-29T16:30:12Z",
    "wall_s": 312.4,
    "peak_rss_mb": 4210.5,
    "acceptance_length": 2.41,
    "acceptance_length_untrained": 1.02,
    "greedy_identical": 20,
    "greedy_total": 20,
    "commit": "0123456789abcdef",
    "dirty": True,
    "lock_id": "ab" * 32,
    "python": "3.11.2",
    "torch": "2.13.0",
    "provenance": {"gpus": {"models": ["H200", "H200"]}, "variables": {"OMP_NUM_THREADS": "1"}, "data": {}},
    "steps": [
        step("check", "check", "ok", attempt(1, 0.0, 2.1, "ok"), host="gpu1"),
        step("prewarm", "prewarm", "ok", attempt(1, 2.2, 81.0, "ok"), result=PREWARM),
        step(
            "train",
            "train",
            "ok",
            attempt(1, 84.0, 30.0, "failed", "lost"),
            attempt(2, 124.0, 171.0, "ok"),
            result=TRAINED,
            launcher={"kind": "torchrun", "port": 29400},
        ),
        step("evaluate", "evaluate", "ok", attempt(1, 296.0, 16.0, "ok"), result=EVALUATED),
        step("export", "export", "skipped"),
    ],
}


def matrix_record() -> dict[str, Any]:
    """The same for two seeds; the first one's training failed."""
    made: dict[str, list[Any]] = {
        "prewarm": [PREWARM, PREWARM],
        "train": [None, TRAINED],
        "evaluate": [{**EVALUATED, "acceptance_length": 3.9}, {**EVALUATED, "acceptance_length": 1.2}],
    }
    found = [
        step(f"{kind}@seed={seed}", kind, "ok" if result else "failed", attempt(1, 1.0, 2.0, "ok"), result=result)
        for kind, results in made.items()
        for seed, result in enumerate(results, 1)
    ]
    return {**RECORD, "acceptance_length": 1.2, "steps": found}


OLD: dict[str, Any] = {
    **{name: value for name, value in RECORD.items() if name != "provenance"},
    "steps": [
        {k: v for k, v in each.items() if k not in ("started", "attempts", "host", "launcher")}
        for each in RECORD["steps"]
    ],
}
"""A record from before attempts and provenance were noted."""


def rows(count: int = 120) -> list[dict[str, Any]]:
    """Rows of a training, some with figures of held-out rows."""
    made = []
    for number in range(1, count + 1):
        row: dict[str, Any] = {
            "step": number,
            "loss": 6.0 / number,
            "accuracy": [0.9, 0.6, 0.3],
            "accept_len": 1 + number / 100,
        }
        row |= {"tokens_per_s": 900.0 + number, "lr": 1e-3, "grad_norm": 1.0}
        row |= {"heldout": {"loss": 3.5, "accuracy": [0.8, 0.7, 0.6], "accept_len": 1.25}} if number % 50 == 0 else {}
        made.append(row)
    return made


def samples(found: list[dict[str, Any]]) -> Samples:
    """The samples of rows."""
    sampler = Sampler()
    for end, row in enumerate(found, 1):
        sampler.take(row, end)
    return Samples(found[-1], sampler.buckets)


def noted(busy: float, gpu_gb: float | None, role: str = "target", count: int = 120) -> list[dict[str, Any]]:
    """Rows of a worker that computed for so much of each step."""
    row: dict[str, Any] = {"role": role, "busy_s": busy / 4, "step_s": 0.25}
    row |= {} if gpu_gb is None else {"gpu_gb": gpu_gb}
    return [{"step": number, **row} for number in range(1, count + 1)]


def workers() -> list[Worker]:
    """Two targets that wait much, and a drafter that does not."""
    made = [noted(0.58, 60.5), noted(0.66, 61.0), noted(0.98, 40.25, "drafter")]
    return [Worker(rank, found[0]["role"], samples(found)) for rank, found in enumerate(made)]


def contents(record: dict[str, Any] = RECORD, found: list[dict[str, Any]] | None = None, **more: Any) -> Contents:
    """What a page is made of; without rows of a training where they are an empty list."""
    found = rows() if found is None else found
    training = next(each for each in record["steps"] if each["kind"] == "train")
    roles = {"target": range(2), "drafter": range(2, 3)}
    measured = next((each for each in reversed(found) if each.get("heldout")), {})
    trainings = [Training(training, samples(found), roles, measured, workers())] if found else []
    spans = {
        each["name"]: [Span(a["started"], a["seconds"], a["status"]) for a in each.get("attempts", ())]
        for each in record["steps"]
    }
    return Contents(record, trainings, spans, **more)
