"""Checkpoints: whole or absent, whatever is done to the writer or the files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dflash.errors import CheckpointError
from dflash.progress import Silent
from dflash.training.checkpoints import Checkpoint, Checkpoints, read

CODE = Path(__file__).parents[2]


class Notes(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, message: str) -> None:
        self.lines.append(message)


def tensors(step: int) -> dict[str, dict[str, Tensor]]:
    return {"model": {"weight": torch.full((8, 3), float(step))}, "optimizer0": {"weight/step": torch.tensor(step)}}


def save(checkpoints: Checkpoints, *steps: int) -> None:
    for step in steps:
        checkpoints.save(step, tensors(step), {"seed": step, "name": "é"})


def steps_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def add_file(folder: Path) -> None:
    (folder / "more.json").write_text("{}")


def test_a_checkpoint_comes_back_as_it_was_saved(tmp_path: Path):
    state = {"config": {"steps": 7, "lr": 1e-3}}
    path = Checkpoints(tmp_path).save(300, tensors(300), state, extra=add_file)
    found = Checkpoints(tmp_path).latest(Silent())
    assert found == Checkpoint(tmp_path / "step-00000300", 300, state)
    assert path == found.folder
    for name, group in tensors(300).items():
        back = found.tensors(name)
        assert back.keys() == group.keys()
        assert all(torch.equal(back[key], value) for key, value in group.items())
    names = ["model.safetensors", "more.json", "optimizer0.safetensors"]
    assert sorted(file.name for file in path.iterdir()) == [*names, "state.json"]
    assert sorted(json.loads((path / "state.json").read_text())["files"]) == names


def test_tensors_that_are_views_are_saved_as_they_look(tmp_path: Path):
    base = torch.arange(12.0).view(3, 4)
    Checkpoints(tmp_path).save(1, {"model": {"turned": base.T, "part": base[1:, ::2]}}, {})
    back = read(tmp_path / "step-00000001").tensors("model")
    assert torch.equal(back["turned"], base.T)
    assert torch.equal(back["part"], base[1:, ::2])


def test_the_newest_are_kept(tmp_path: Path):
    save(Checkpoints(tmp_path, keep=2), 5, 10, 100, 95)
    assert steps_in(tmp_path) == ["step-00000095", "step-00000100"]
    newest = Checkpoints(tmp_path).latest(Silent())
    assert newest is not None
    assert newest.step == 100


def test_without_a_checkpoint_there_is_none(tmp_path: Path):
    assert Checkpoints(tmp_path / "none").latest(Silent()) is None


def test_a_step_that_is_saved_again_is_the_new_one(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 5)
    checkpoints.save(5, tensors(6), {"again": True})
    found = checkpoints.latest(Silent())
    assert found is not None
    assert found.state == {"again": True}
    assert torch.equal(found.tensors("model")["weight"], tensors(6)["model"]["weight"])
    assert steps_in(tmp_path) == ["step-00000005"]


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)


def tear(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DAMAGE: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "a flipped byte": ("model.safetensors", flip, "is damaged: not the bytes that were saved"),
    "a torn file": ("optimizer0.safetensors", tear, "is damaged: not the bytes that were saved"),
    "a missing file": ("model.safetensors", Path.unlink, "is missing"),
    "a torn state": ("state.json", tear, "can not be read"),
    "no state": ("state.json", Path.unlink, "can not be read"),
    "an empty state": ("state.json", lambda file: file.write_text(""), "can not be read"),
    "a state that is no object": ("state.json", lambda file: file.write_text("[1]"), "can not be read"),
    "a state that is not UTF-8": ("state.json", lambda file: file.write_bytes(b"\xff\xfe"), "can not be read"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path, damage: str):
    name, apply, reason = DAMAGE[damage]
    save(Checkpoints(tmp_path), 1, 2)
    broken = tmp_path / "step-00000002"
    apply(broken / name)
    notes = Notes()
    found = Checkpoints(tmp_path).latest(notes)
    assert found is not None
    assert (found.step, found.state["seed"]) == (1, 1)
    (line,) = notes.lines
    assert line.startswith(f"{broken / name}: {reason}")
    assert line.endswith("; the checkpoint before it is used; move this folder away to be rid of this line")
    assert broken.is_dir()


def test_if_all_are_damaged_each_is_named_and_none_is_used(tmp_path: Path):
    save(Checkpoints(tmp_path), 1, 2)
    for folder in tmp_path.iterdir():
        flip(folder / "model.safetensors")
    notes = Notes()
    assert Checkpoints(tmp_path).latest(notes) is None
    assert [line.partition(":")[0] for line in notes.lines] == [
        str(tmp_path / f"step-0000000{step}" / "model.safetensors") for step in (2, 1)
    ]


def test_no_byte_of_the_state_can_change_unnoticed(tmp_path: Path):
    save(Checkpoints(tmp_path), 3)
    folder = tmp_path / "step-00000003"
    before, content = read(folder), (folder / "state.json").read_bytes()
    complaints: list[str] = []
    for place in range(len(content)):
        for bit in (1, 32):
            changed = bytearray(content)
            changed[place] ^= bit
            (folder / "state.json").write_bytes(changed)
            try:
                assert read(folder) == before  # white space, say
            except CheckpointError as damage:
                complaints.append(str(damage))
    assert all(line.startswith(f"{folder}/state.json: ") for line in complaints)
    assert len(complaints) > 0.9 * 2 * len(content)


def test_a_checkpoint_in_a_folder_of_another_step_is_refused(tmp_path: Path):
    save(Checkpoints(tmp_path), 3)
    shutil.copytree(tmp_path / "step-00000003", tmp_path / "step-00000009")
    with pytest.raises(CheckpointError, match=r"step-00000009/state.json: is damaged: not what was saved"):
        read(tmp_path / "step-00000009")


def test_a_damaged_checkpoint_is_not_one_of_those_kept_and_stays_until_its_step_is_saved_again(tmp_path: Path):
    save(Checkpoints(tmp_path), 1, 2)
    flip(tmp_path / "step-00000002" / "model.safetensors")
    checkpoints = Checkpoints(tmp_path)
    checkpoints.latest(Silent())
    damaged = (tmp_path / "step-00000002" / "model.safetensors").read_bytes()
    save(checkpoints, 3)
    assert steps_in(tmp_path) == ["step-00000001", "step-00000002", "step-00000003"]
    assert (tmp_path / "step-00000002" / "model.safetensors").read_bytes() == damaged
    save(checkpoints, 2)
    assert steps_in(tmp_path) == ["step-00000002", "step-00000003"]
    assert read(tmp_path / "step-00000002").state["seed"] == 2


def test_the_only_whole_one_is_not_dropped_for_newer_ones_that_came_half(tmp_path: Path):
    save(Checkpoints(tmp_path, keep=9), 1, 2, 3, 4, 5)
    for step in (4, 5):
        tear(tmp_path / f"step-0000000{step}" / "model.safetensors")
    Checkpoints(tmp_path).prune(Silent())
    assert steps_in(tmp_path) == [f"step-0000000{step}" for step in (2, 3, 4, 5)]
    found = Checkpoints(tmp_path).latest(Silent())
    assert found is not None
    assert found.step == 3


def test_a_failed_save_leaves_the_others_and_no_remains(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)

    def fail(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(2, tensors(2), {}, extra=fail)
    assert steps_in(tmp_path) == ["step-00000001"]


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from dflash.progress import Silent
from dflash.training.checkpoints import Checkpoints
from dflash.training.saving import Saving

def save(checkpoints, step):
    checkpoints.save(step, {"model": {"weight": torch.full((8, 3), float(step))}}, {"seed": step})

def save_while_training(checkpoints, step):
    weight = torch.full((8, 3), float(step))
    with Saving(checkpoints, lambda: {"model": {"weight": weight}}, Silent()) as saving:
        saving.save(step, {"seed": step}, lambda folder: None)
        weight.fill_(-1.0)

def die_before(moment):
    left = [moment]

    def audit(event, arguments):
        if event == "open" or event.startswith(("os.", "shutil.")):
            if not left[0]:
                left[0] = -1
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

    sys.addaudithook(audit)

def killed(folder, moment, again):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    checkpoints = Checkpoints(folder, keep=1 + again)
    for step in (1, 2) if again else (1,):
        save(checkpoints, step)
    die_before(moment)
    (save_while_training if again else save)(checkpoints, 2)
    os._exit(0)

for kind in ("first", "again"):
    moment = 0
    while killed(Path(sys.argv[1]) / kind / f"{moment:03d}", moment, kind == "again"):
        moment += 1
"""
"""Saves step 2 in a process that kills itself before the 1st, 2nd, 3rd … system call that Python tells of; at once, and
again, on a thread beside a training."""


def test_a_save_that_is_killed_at_any_moment_leaves_a_whole_checkpoint_and_the_next_save_clears_up(tmp_path: Path):
    words = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(words, cwd=CODE, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    for kind in ("first", "again"):
        left, remains = [], 0
        for folder in sorted((tmp_path / kind).iterdir()):
            notes = Notes()
            found = Checkpoints(folder).latest(notes)
            assert found is not None, folder
            assert notes.lines == []
            assert found.state == {"seed": found.step}
            assert torch.equal(found.tensors("model")["weight"], torch.full((8, 3), float(found.step)))
            left.append(found.step)
            remains += any(path.name.startswith(".") for path in folder.iterdir())
            save(Checkpoints(folder, keep=1), 3)
            assert steps_in(folder) == ["step-00000003"]
        assert len(left) > 15
        assert remains > 5
        assert set(left) == {1, 2}
        if kind == "first":
            assert left == sorted(left)  # from some moment on it is the new one
