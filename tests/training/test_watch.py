"""A worker that runs out of memory ends all, and says in one line when it did and what would fit."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel, Qwen3Config

from dflash.errors import OutOfMemory
from dflash.model.draft import DFlashDraftModel
from dflash.progress import Silent
from dflash.training import watch
from dflash.training.fitting import GIB
from dflash.training.graphset import GraphSet
from dflash.training.launching import Told
from dflash.training.prewarm import _Processes
from dflash.training.sources import Real
from dflash.training.trainer import Trainer
from dflash.training.watch import lack_of_memory, wanted_by
from tests.tiny import target_config
from tests.training.small import CONFIG, Watching, rows
from tests.training.test_fitting import memory

LACK = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.6 GiB")


def test_a_lack_of_memory_is_found_behind_other_failures():
    wrapped = RuntimeError("backend")
    wrapped.__cause__ = ValueError("inside")
    wrapped.__cause__.__context__ = LACK
    assert lack_of_memory(wrapped) is LACK
    assert lack_of_memory(ValueError("other")) is None
    assert wanted_by(str(LACK)) == 2.5 * GIB
    assert wanted_by("out of memory") == 0.0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Figures of a GPU for a worker on the CPU; and no thread is left."""
    monkeypatch.setattr(watch, "memory_of", lambda device: memory(24, others=0.2))
    before = threading.active_count()
    yield
    assert threading.active_count() == before


class Full(Real):
    """Models of which the target's lack memory when they are run for the `at`th time, or the drafters' on loading."""

    def __init__(self, folder: Path, at: int = 0) -> None:
        super().__init__(folder, CONFIG.seed, CONFIG.draft.features)
        self.folder, self._at = folder, at

    def target(self, device: torch.device, dtype: torch.dtype, mesh: DeviceMesh | None = None) -> PreTrainedModel:
        model = super().target(device, dtype, mesh)
        left = [self._at]

        def run(*_: object) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise LACK

        model.get_input_embeddings().register_forward_hook(run)
        return model

    def draft(self, config: Qwen3Config, device: torch.device) -> DFlashDraftModel:
        if not self._at:
            raise LACK
        return super().draft(config, device)


def out_of_memory(models: Full, out: Path, monkeypatch: pytest.MonkeyPatch) -> OutOfMemory:
    """How a training with these models ends."""
    monkeypatch.setattr("dflash.training.trainer.Real", lambda *_: models)
    with pytest.raises(OutOfMemory) as raised:
        Trainer(CONFIG, models.folder, rows(), Watching()).train(out)
    assert raised.value.__cause__ is LACK
    assert raised.value.exit_code == 10
    return raised.value


WHEN = {
    0: "cpu: worker 5 (drafter) ran out of memory while it loaded its models: it wanted 2.5 GiB more; "
    "of 24.0 GiB it had 23.7 GiB, and others 0.2 GiB; 0.0 GiB are needed before the first row; choose train.dtype",
    2: "cpu: worker 0 (target) ran out of memory in the warm-up on rows of 48 tokens, with train.rows=1: "
    "it wanted 2.5 GiB more; of 24.0 GiB it had 23.7 GiB, and others 0.2 GiB; "
    "take sizes that are estimated to fit: --set 'data.buckets=[32]' (",
    4: "(target) ran out of memory while it trained, with train.rows=1: it wanted 2.5 GiB more; ",
}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("at", WHEN)
def test_a_worker_that_runs_out_of_memory_ends_all_and_says_when_and_what_would_fit(
    target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
):
    assert WHEN[at] in str(out_of_memory(Full(target_folder, at), tmp_path, monkeypatch))


def test_without_figures_the_line_still_says_who_and_when(
    target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    said = str(out_of_memory(Full(target_folder, 1), tmp_path, monkeypatch))
    assert said.startswith("cpu: worker 0 (target) ran out of memory in the warm-up on rows of 32 tokens")
    assert said.endswith("; lower train.rows or train.anchors")


def test_what_a_worker_process_says_is_raised_as_its_kind():
    told = Told(Silent(), hung=lambda: None)
    said = {"dflash": "failure", "class": "OutOfMemory", "what": "ran out", "where": "cuda:3", "cure": "lower rows"}
    told.hear(json.dumps(said))
    assert isinstance(told.failure, OutOfMemory)
    assert str(told.failure) == "cuda:3: ran out; lower rows"


def test_a_warm_up_process_that_runs_out_of_memory_is_no_fault_of_its_graphs(
    target_folder: Path, tmp_path: Path, monkeypatch
):
    program = tmp_path / "python"
    last = {"error": "cuda:1: ran out; lower rows", "failure": ["OutOfMemory", "ran out", "cuda:1", "lower rows"]}
    program.write_text(f"#!/bin/sh\ncat > /dev/null\necho '{json.dumps(last)}'\nexit 10\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    graphs = GraphSet.of(CONFIG, target_config(), [32])
    with _Processes(tmp_path) as processes, pytest.raises(OutOfMemory, match="cuda:1: ran out; lower rows"):
        processes.warm_up(graphs, graphs.layouts()[0][1:], threads=1)


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "NCCL error: unhandled cuda error\nCuda failure 2 'out of memory'",
    ],
)
def test_what_torch_does_not_allocate_can_lack_memory_too(words: str):
    assert watch.lack_of_memory(RuntimeError(words)) is not None
    assert watch.lack_of_memory(RuntimeError("CUDA error: an illegal memory access")) is None
