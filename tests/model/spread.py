"""One process of a target that is spread over several, on GPUs if there are: `torchrun spread.py FOLDER...` prints, for
each folder, how far its features are from those of the whole model, and which part of the layers' weights it holds."""

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

LAYERS = 4


def held(model: PreTrainedModel) -> int:
    """Numbers in the layers' matrices that are in this process."""
    matrices = [each for each in model.base_model.layers.parameters() if each.ndim > 1]
    return sum((each.to_local() if isinstance(each, DTensor) else each).numel() for each in matrices)


def main() -> None:
    torch.set_num_threads(1)
    on_gpus = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpus else "gloo")
    device = torch.device("cuda", dist.get_rank()) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    mesh = DeviceMesh(device.type, list(range(dist.get_world_size())))
    tokens = torch.arange(3, 37, device=device)[None]
    row = tokens, torch.arange(34, device=device)[None], torch.zeros_like(tokens)
    for folder in map(Path, sys.argv[1:]):
        whole = load_layers(folder, LAYERS, device, norm=True)
        part = load_layers(folder, LAYERS, device, norm=True, mesh=mesh)
        refuse_unlike(part, folder)
        expected, found = (Capture(each, [1, 3], last=True).features(*row) for each in (whole, part))
        apart = float((found - expected).norm() / expected.norm())
        told = {"kind": folder.name, "apart": apart, "held": held(part) / held(whole)}
        sys.stdout.write(json.dumps(told) + "\n")  # at once, since the other process writes to the same pipe
        sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
