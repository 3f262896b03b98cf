"""A drafter's folder, and ways to make it another's: other fields, other tensors, shards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash.model.draft import DFlashDraftModel
from dflash.model.layout import write_layout
from tests.tiny import new_draft

WINDOW = 6


def sliding_draft() -> DFlashDraftModel:
    return new_draft(layers=2, sliding=1, window=WINDOW).float()


def written(folder: Path, draft: DFlashDraftModel) -> Path:
    folder.mkdir()
    write_layout(draft, folder)
    return folder


def fields_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def change(folder: Path, *without: str, **fields: Any) -> None:
    kept = {name: value for name, value in fields_of(folder).items() if name not in without}
    (folder / "config.json").write_text(json.dumps(kept | fields))


def rewrite_tensors(folder: Path, rewrite: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    weights = folder / "model.safetensors"
    save_file(rewrite(load_file(weights)), weights)


def in_shards(folder: Path) -> None:
    """Two files and an index, as `save_pretrained` leaves a large model."""
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    weights.unlink()
    places = {name: f"model-{1 + number % 2:05}-of-00002.safetensors" for number, name in enumerate(sorted(tensors))}
    for shard in set(places.values()):
        save_file({name: tensors[name] for name, place in places.items() if place == shard}, folder / shard)
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
