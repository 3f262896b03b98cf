"""The real kinds of steps: what makes one of them run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash.compilation.cachekey import key_file, write_key
from dflash.errors import CompilationError
from dflash.pipeline.kinds import StepInputs
from dflash.pipeline.launchers.launcher import TrainingJob
from dflash.pipeline.steps import KINDS
from dflash.progress import Progress, Silent
from dflash.training.config import PrewarmConfig, TargetConfig, TrainConfig
from dflash.training.dataconfig import DataConfig
from tests.training.small import CONFIG, rows


def test_a_training_that_left_the_closed_set_takes_back_that_its_cache_was_proved(
    tmp_path: Path, target_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """The proof's mark is an output of the pre-warm, which therefore runs again in the next run."""
    from dflash.training.packing import save_rows
    from dflash.training.trainer import Trainer

    def leave(self: Trainer, out: Path) -> None:
        raise CompilationError("a graph was missing")

    monkeypatch.setattr(Trainer, "train", leave)
    for name in ("TORCHINDUCTOR_CACHE_DIR", "HF_HUB_OFFLINE", "HF_MODULES_CACHE"):
        monkeypatch.setenv(name, "")
    cache = tmp_path / "prewarm" / "inductor"
    write_key(cache, {"torch": "2"}, 4)
    (tmp_path / "data").mkdir()
    save_rows(tmp_path / "data" / "rows.safetensors", rows())
    save_rows(tmp_path / "data" / "heldout.safetensors", {})
    inputs = {"data": tmp_path / "data", "prewarm": cache.parent, "target": target_folder}
    results = {"target": {"folder": str(target_folder)}}
    step = StepInputs(CONFIG, inputs, results, tmp_path / "out", tmp_path, Silent())
    with pytest.raises(CompilationError):
        KINDS["train"].run(step)
    assert not key_file(cache).exists()


def test_a_training_has_the_steps_own_variables_for_its_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    jobs: list[TrainingJob] = []

    class Launcher:
        def train(self, job: TrainingJob, progress: Progress) -> dict[str, Any]:
            jobs.append(job)
            return {}

    monkeypatch.setattr("dflash.pipeline.launchers.launcher.launcher_for", lambda declared, hosts: Launcher())
    for name in ("HF_HUB_OFFLINE", "HF_MODULES_CACHE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "")  # put back what the step sets
    inputs = dict.fromkeys(("target", "data", "prewarm"), tmp_path / "none")
    own = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    KINDS["train"].run(StepInputs(CONFIG, inputs, {"target": {}}, tmp_path, tmp_path, Silent(), env=own))
    assert jobs[0].env == own


def test_what_this_machine_compiles_with_makes_the_pre_warm_run_again(monkeypatch: pytest.MonkeyPatch):
    before = KINDS["prewarm"].fingerprint(None)
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    after = KINDS["prewarm"].fingerprint(None)
    assert {name for name in before if before[name] != after[name]} == {"overrides"}


class Looked:
    """A config that notes which of its fields are looked at."""

    def __init__(self, config: object) -> None:
        self.__dict__.update(_config=config, seen=set())

    def __getattr__(self, name: str) -> object:
        self.seen.add(name)
        return getattr(self._config, name)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("target", TargetConfig(corpus_bytes=100_000)),
        ("target", TargetConfig(folder=".")),
        ("data", DataConfig(corpus_bytes=100_000)),
        ("data", DataConfig(file="README.md", corpus_bytes=100_000)),
        ("prewarm", PrewarmConfig("train")),
        ("train", TrainConfig(start=".")),
    ],
)
def test_a_fingerprint_looks_only_at_the_fields_that_its_kind_says(kind: str, config: object):
    looked = Looked(config)
    KINDS[kind].fingerprint(looked)
    assert looked.seen <= set(KINDS[kind].fingerprint_of)
