"""Checkpoints: whole or absent, verified when read, the last good ones kept.

A checkpoint is a folder `step-00000300/` of safetensors and JSON files; `state.json`, written with it, names each
file's size and SHA-256, and its own. A damaged one is named and passed over for the one before; it stays, for a
person to look at, until the same step is saved again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from dflash.atomic import sha256, whole_folder
from dflash.errors import CheckpointError
from dflash.model.tensors import write_tensors
from dflash.progress import Progress

STATE = "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """One verified checkpoint: its folder, the number of finished steps, and the caller's own state."""

    folder: Path
    step: int
    state: dict[str, Any]

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors saved under `name`."""
        return load_file(self.folder / f"{name}.safetensors")


class Checkpoints:
    """The checkpoints of one training, in `folder`; `keep` good ones stay. One process writes at a time."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep
        self._damaged: set[Path] = set()

    def save(
        self,
        step: int,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        extra: Callable[[Path], None] | None = None,
    ) -> Path:
        """Write the checkpoint of `step` whole, then drop those beyond `keep`; `extra` may add files to it."""
        path = self.folder / name_of(step)
        for remains in self.folder.glob(".step-*"):  # of a writer that was killed
            shutil.rmtree(remains)
        with whole_folder(path) as draft:
            for name, group in tensors.items():
                write_tensors(draft / f"{name}.safetensors", group)
            if extra:
                extra(draft)
            files = {
                str(file.relative_to(draft)): {"size": file.stat().st_size, "sha256": sha256(file)}
                for file in sorted(draft.rglob("*"))
                if file.is_file()
            }
            document = json.loads(json.dumps({"step": step, "state": dict(state), "files": files}))
            document["sha256"] = _digest(document)
            (draft / STATE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        self._damaged.discard(path)
        self._drop_old()
        return path

    def prune(self, progress: Progress) -> None:
        """Drop those beyond `keep`, of whoever wrote them: none before the newest that is whole is looked for."""
        self.latest(progress)
        self._drop_old()

    def _drop_old(self) -> None:
        good = [folder for folder in self._folders() if folder not in self._damaged]
        for old in good[self.keep :]:
            shutil.rmtree(old)

    def latest(self, progress: Progress) -> Checkpoint | None:
        """The newest checkpoint that is whole; damaged ones are named to `progress` and passed over."""
        for folder in self._folders():
            try:
                return read(folder)
            except CheckpointError as damage:
                self._damaged.add(folder)
                progress.note(f"{damage}")
        return None

    def _folders(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"), reverse=True)


def name_of(step: int) -> str:
    """The name of the checkpoint after `step` steps; names sort by step."""
    return f"step-{step:08d}"


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def read(folder: Path) -> Checkpoint:
    """Read and verify one checkpoint.

    Raises:
        CheckpointError: a file is missing or does not have the size and hash it was saved with; names the file.
    """
    cure = "the checkpoint before it is used; move this folder away to be rid of this line"
    state = folder / STATE
    try:
        document = json.loads(state.read_text(encoding="utf-8"))
        expected = document.pop("sha256")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as failure:
        raise CheckpointError(f"can not be read ({failure})", where=str(state), cure=cure) from failure
    if _digest(document) != expected or folder.name != name_of(document["step"]):
        raise CheckpointError("is damaged: not what was saved", where=str(state), cure=cure)
    for name, saved in document["files"].items():
        file = folder / name
        if not file.is_file():
            raise CheckpointError("is missing", where=str(file), cure=cure)
        if file.stat().st_size != saved["size"] or sha256(file) != saved["sha256"]:
            raise CheckpointError("is damaged: not the bytes that were saved", where=str(file), cure=cure)
    return Checkpoint(folder, document["step"], document["state"])


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    """An optimizer's state as named tensors, `<parameter>/<entry>`; `names` gives each parameter's name."""
    return {
        f"{names[parameter]}/{entry}": value.detach()
        for parameter, entries in optimizer.state.items()
        for entry, value in entries.items()
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Iterable[tuple[str, Tensor]], saved: Mapping[str, Tensor]
) -> None:
    """Put back what `optimizer_tensors` gave."""
    by_name = dict(parameters)
    for key, value in saved.items():
        name, _, entry = key.rpartition("/")
        optimizer.state[by_name[name]][entry] = value
