"""A checkpoint is written while the training goes on: of its own step, one at a time, and never forgotten."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dflash.training import saving as saving_module
from dflash.training import trainer
from dflash.training.checkpoints import Checkpoints, read
from dflash.training.saving import HostCopy, Saving
from dflash.training.trainer import Trainer
from tests.training.logged import read_metrics
from tests.training.small import CONFIG, Watching, rows, train
from tests.training.test_checkpoints import Notes, steps_in
from tests.training.test_trainer import same_bits


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


class Held(Checkpoints):
    """Writes nothing before it is released, and fails with `failure` then, if there is one."""

    def __init__(self, folder: Path, failure: Exception | None = None) -> None:
        super().__init__(folder)
        self.released, self._failure = threading.Event(), failure

    def save(self, *arguments: Any) -> Path:
        assert self.released.wait(20)
        if self._failure:
            raise self._failure
        return super().save(*arguments)


class Training:
    """A state that each step overwrites, as an optimizer does."""

    def __init__(self) -> None:
        self.weight, self.count = torch.zeros(64, 8), torch.tensor(0.0)
        self.turned = self.weight.T

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        return {"model": {"weight": self.weight, "turned": self.turned}, "optimizer": {"count": self.count}}

    def step(self, number: int) -> None:
        self.weight.fill_(number)
        self.count.fill_(number)


def add_nothing(folder: Path) -> None:
    pass


def save(saving: Saving, training: Training, step: int) -> None:
    training.step(step)
    saving.save(step, {"seed": step}, add_nothing)


def value_of(folder: Path) -> float:
    """The one number that all of a checkpoint's tensors hold."""
    found = read(folder)
    parts = [*found.tensors("model").values(), *found.tensors("optimizer").values()]
    (value,) = {float(each) for part in parts for each in part.flatten()}
    assert found.state == {"seed": value}
    return value


def test_the_training_goes_on_and_what_is_written_is_the_state_of_the_step_it_says(tmp_path: Path):
    checkpoints, training = Held(tmp_path), Training()
    with Saving(checkpoints, training.state, Notes()) as saving:
        save(saving, training, 1)
        for number in (2, 3, 4):
            training.step(number)
            saving.check()
        assert steps_in(tmp_path) == []
        checkpoints.released.set()
    assert steps_in(tmp_path) == ["step-00000001"]
    assert value_of(tmp_path / "step-00000001") == 1


def test_a_save_waits_for_the_one_before_and_each_is_of_its_own_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(saving_module, "TOLD_S", 0.1)
    checkpoints, training, notes = Held(tmp_path), Training(), Notes()
    with Saving(checkpoints, training.state, notes) as saving:
        save(saving, training, 1)
        threading.Timer(0.2, checkpoints.released.set).start()
        save(saving, training, 2)
        assert (tmp_path / "step-00000001").is_dir(), "its memory is that of the next"
        training.step(3)
    assert [value_of(tmp_path / f"step-0000000{step}") for step in (1, 2)] == [1, 2]
    (line,) = notes.lines
    assert line.startswith("train: step 2 waited 0.")
    assert "s for the checkpoint before to be written; raise train.checkpoint_every" in line


def test_the_same_host_memory_is_used_for_each_copy():
    training = Training()
    copy = HostCopy(training.state())
    places = [part.data_ptr() for group in copy.tensors.values() for part in group.values()]
    for number in (1, 2):
        training.step(number)
        copy.take(training.state())
        copy.wait()
        assert all(part.eq(number).all() for group in copy.tensors.values() for part in group.values())
    assert [part.data_ptr() for group in copy.tensors.values() for part in group.values()] == places


FULL = OSError(28, "No space left on device")


def failed(folder: Path) -> tuple[Saving, Training, Notes]:
    """A `Saving` whose write has failed."""
    checkpoints, training, notes = Held(folder, FULL), Training(), Notes()
    saving = Saving(checkpoints, training.state, notes)
    save(saving, training, 1)
    checkpoints.released.set()
    while any(thread.name == "checkpoint" for thread in threading.enumerate()):
        pass
    return saving, training, notes


def test_a_write_that_fails_is_raised_at_the_next_step_and_once(tmp_path: Path):
    saving, _, notes = failed(tmp_path)
    with pytest.raises(OSError, match="No space left") as raised, saving:
        saving.check()
    assert raised.value is FULL
    assert notes.lines == []


def test_a_write_that_fails_is_raised_at_the_next_save_and_that_writes_nothing(tmp_path: Path):
    saving, training, _ = failed(tmp_path)
    with pytest.raises(OSError, match="No space left"), saving:
        save(saving, training, 2)
    assert steps_in(tmp_path) == []


def test_a_write_that_fails_after_the_last_step_is_raised_at_the_end(tmp_path: Path):
    saving, _, _ = failed(tmp_path)
    with pytest.raises(OSError, match="No space left"), saving:
        pass


def test_another_failure_waits_for_the_write_and_is_the_one_that_is_raised(tmp_path: Path):
    checkpoints, training, notes = Held(tmp_path), Training(), Notes()
    saving = Saving(checkpoints, training.state, notes)
    save(saving, training, 1)
    threading.Timer(0.1, checkpoints.released.set).start()
    with pytest.raises(ValueError, match="other"), saving:
        raise ValueError("other")
    assert value_of(tmp_path / "step-00000001") == 1
    assert notes.lines == []


def test_a_write_that_fails_beside_another_failure_is_noted(tmp_path: Path):
    saving, _, notes = failed(tmp_path)
    with pytest.raises(ValueError, match="other"), saving:
        raise ValueError("other")
    assert notes.lines == [f"train: the last checkpoint could not be written: {FULL}"]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Watching:
    """Lets a training's checkpoints be written only when two more steps are reported, or none come any more."""
    watching = Watching()

    class Slow(Checkpoints):
        def save(self, step: int, *arguments: Any) -> Path:
            until = time.monotonic() + 0.4
            while watching.steps[-1][0] < step + 2 and time.monotonic() < until:
                time.sleep(0.005)
            return super().save(step, *arguments)

    monkeypatch.setattr(trainer, "Checkpoints", Slow)
    return watching


def newest(out: Path) -> int:
    found = Checkpoints(out / "scratch" / "checkpoints").latest(Watching())
    assert found
    return found.step


def test_a_training_whose_checkpoints_are_written_late_ends_with_the_last_and_resumes_to_the_same_bits(
    target_folder: Path, tmp_path: Path, slow: Watching
):
    train(target_folder, tmp_path / "whole", slow)
    assert newest(tmp_path / "whole") == CONFIG.steps
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut" / "scratch" / "checkpoints" / "step-00000012")
    assert train(target_folder, tmp_path / "cut", slow)["resumed_at"] == 8
    assert same_bits(tmp_path / "cut", tmp_path / "whole")
    assert [row["step"] for row in read_metrics(tmp_path / "cut" / "metrics.jsonl")] == list(range(1, 13))


def test_a_training_that_is_stopped_waits_for_its_last_checkpoint(target_folder: Path, tmp_path: Path, slow: Watching):
    stops = Trainer(CONFIG, target_folder, rows(), slow, stopping=lambda: len(slow.steps) > 5)
    with pytest.raises(KeyboardInterrupt):
        stops.train(tmp_path)
    assert newest(tmp_path) == slow.steps[-1][0] < CONFIG.steps


def test_a_worker_that_fails_while_a_checkpoint_is_written_does_not_spoil_it(
    target_folder: Path, tmp_path: Path, slow: Watching
):
    packed = rows()
    slow._at_step = lambda step: step == 4 and packed[48].tokens.fill_(9999)
    with pytest.raises(IndexError):
        Trainer(CONFIG, target_folder, packed, slow).train(tmp_path)
    assert newest(tmp_path) == 4


def test_a_checkpoint_that_can_not_be_written_ends_the_training_at_the_next_step(
    target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> Path:
        raise FULL

    def wait_for_the_writer(step: int) -> None:
        while any(thread.name == "checkpoint" for thread in threading.enumerate()):
            time.sleep(0.005)

    monkeypatch.setattr(Checkpoints, "save", refuse)
    watching = Watching(wait_for_the_writer)
    with pytest.raises(OSError, match="No space left"):
        train(target_folder, tmp_path, watching)
    assert 4 <= watching.steps[-1][0] <= 5
