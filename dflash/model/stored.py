"""The weights of a model folder in transformers' layout, each read when it is asked for, straight to a device."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig

from dflash.errors import UsageError
from dflash.model.layout import CONFIG, INDEX, WEIGHTS


class Stored:
    """A tensor that is still in its file. It tells its shape, and indexing reads it: all that transformers asks."""

    def __init__(self, opened: Callable[[str], Any], file: str, name: str) -> None:
        self._opened, self._file, self._name = opened, file, name

    def __getitem__(self, part: Any) -> Tensor:
        tensor: Tensor = self._opened(self._file).get_slice(self._name)[part]
        return tensor

    def get_shape(self) -> list[int]:
        """As safetensors' slices name it."""
        shape: list[int] = self._opened(self._file).get_slice(self._name).get_shape()
        return shape


def identity_of(folder: Path) -> str:
    """What tells a model from others without reading it whole: a digest of its configuration, and of the names and
    sizes of its files of weights."""
    weights = sorted((path.name, path.stat().st_size) for path in folder.glob("*.safetensors"))
    return hashlib.sha256((folder / CONFIG).read_bytes() + repr(weights).encode()).hexdigest()


def stored_tensors(folder: Path, device: torch.device) -> dict[str, Stored]:
    """Every tensor of a folder by its name, none of them read yet, and each on `device` when it is: those of one
    file, or of the shards of an index, which are opened when the first of their tensors is read.

    Raises:
        OSError, safetensors.SafetensorError, ValueError: there is neither, or it is damaged.
    """

    @cache
    def opened(file: str) -> Any:
        return safe_open(folder / file, "pt", device=str(device))

    if (folder / WEIGHTS).exists() or not (folder / INDEX).exists():
        return {name: Stored(opened, WEIGHTS, name) for name in opened(WEIGHTS).keys()}  # noqa: SIM118
    places: dict[str, str] = json.loads((folder / INDEX).read_text(encoding="utf-8")).get("weight_map")
    if not places:
        raise ValueError(f"{INDEX} has no weight_map")
    return {name: Stored(opened, file, name) for name, file in places.items()}


def fill(model: PreTrainedModel, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
    """Give a `model` on the meta device its weights, on `device` in `dtype`. What it does not have is not read, and
    the file of that may be absent; tied weights are one again.

    By the function that `from_pretrained` itself loads with, which knows how the names and shapes of a checkpoint
    differ from the model's (experts apart and fused, say). `from_pretrained` would fill another device than the CPU
    only by accelerate, and wants every file of the index.

    Raises:
        UsageError: weights are missing, of another shape or quantised, or a file that is needed can not be read.
        torch.OutOfMemoryError: the device is too small.
    """
    try:
        if getattr(model.config, "quantization_config", None):
            raise ValueError("its weights are quantised")
        how = LoadStateDictConfig(
            device_map={"": device},
            dtype=dtype,
            dtype_plan=model._get_dtype_plan(dtype),
            weight_mapping=get_model_conversion_mapping(model),
        )
        report, _ = convert_and_load_state_dict_in_model(model, stored_tensors(folder, device), how)
        if report.mismatched_keys:
            name, found, wanted = min(report.mismatched_keys)
            raise ValueError(f"{name} is {tuple(found)} in the weights, {tuple(wanted)} by the configuration")
    except torch.OutOfMemoryError:
        raise
    except Exception as failure:  # safetensors has an exception class of its own
        raise can_not_be_loaded(folder, failure) from failure
    model.tie_weights(missing_keys=report.missing_keys, recompute_mapping=False)
    refuse_missing(report.missing_keys | report.conversion_errors.keys(), folder)
    # Frequencies and scales that are computed, and in no file: transformers knows how, and leaves alone what was read.
    for name, buffer in list(model.named_non_persistent_buffers()):
        module, _, last = name.rpartition(".")
        setattr(model.get_submodule(module), last, torch.empty_like(buffer, device=device))
    model.initialize_weights()


def can_not_be_loaded(folder: Path, failure: Exception) -> UsageError:
    """What a person is told of a `failure` to read the model in `folder`."""
    reason = (str(failure) or type(failure).__name__).splitlines()[0]
    return UsageError(f"the model can not be loaded ({reason})", where=str(folder), cure=CURE)


def refuse_missing(names: Collection[str], folder: Path) -> None:
    """Raise UsageError if weights are missing: transformers would fill them up with random numbers, and a drafter
    trained against a random LM head learns nothing."""
    if missing := sorted(names):
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise UsageError(f"the weights lack {missing[0]}{more}", where=str(folder), cure=CURE)


CURE = "copy the model folder again"
