"""One process of a target that is spread over several, on a CPU: `torchrun spread.py FOLDER...` prints, for each
folder, how far its features are from those of the whole model, and which part of the layers' weights it holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from dflash.model.target import Capture, load_layers, refuse_unlike

CPU, LAYERS = torch.device("cpu"), 4


def held(model: PreTrainedModel) -> int:
    """Numbers in the layers' matrices that are in this process."""
    matrices = [each for each in model.base_model.layers.parameters() if each.ndim > 1]
    return sum((each.to_local() if isinstance(each, DTensor) else each).numel() for each in matrices)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = DeviceMesh("cpu", list(range(dist.get_world_size())))
    tokens = torch.arange(3, 37)[None]
    row = tokens, torch.arange(34)[None], torch.zeros_like(tokens)
    for folder in map(Path, sys.argv[1:]):
        whole = load_layers(folder, LAYERS, CPU, norm=True)
        part = load_layers(folder, LAYERS, CPU, norm=True, mesh=mesh)
        refuse_unlike(part, folder)
        expected, found = (Capture(each, [1, 3], last=True).features(*row) for each in (whole, part))
        apart = float((found - expected).norm() / expected.norm())
        told = {"kind": folder.name, "apart": apart, "held": held(part) / held(whole)}
        sys.stdout.write(json.dumps(told) + "\n")  # at once, since the other process writes to the same pipe
        sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
