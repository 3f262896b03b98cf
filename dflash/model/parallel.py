"""A target that is larger than a GPU: its matrices spread over several, by transformers' plans over torch's DTensor."""

from __future__ import annotations

from pathlib import Path

from torch.distributed.device_mesh import DeviceMesh
from transformers import PretrainedConfig, PreTrainedModel
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

from dflash.errors import UsageError


def spread(model: PreTrainedModel, mesh: DeviceMesh, folder: Path) -> None:
    """Make of a `model` on the meta device the part of it that this process of `mesh` holds (Shoeybi et al. 2019, arXiv
    1909.08053): of each layer's matrices so many columns or rows, which are all that is then read of them. Its forward
    pass is called by all processes of `mesh` alike, adds up over them, and gives each the whole states. What lies
    outside the base model stays as it is.

    Raises:
        UsageError: transformers has no plan for a model of this build.
    """
    inside = f"{model.base_model_prefix}."
    rules = {name: style for name, style in model.tp_plan.items() if name.startswith(inside)}
    if not rules:
        raise UsageError(
            f"transformers does not know how to spread a {type(model).__name__} over GPUs",
            where=str(folder),
            cure="set train.topology.target_gpus to 1",
        )
    apply_tensor_parallelism(model, mesh, model._expand_parallel_plan(rules))


def refuse_uneven(config: PretrainedConfig, gpus: int) -> None:
    """Raise UsageError if the heads of a target can not be shared out evenly over so many GPUs."""
    for name in ("num_attention_heads", "num_key_value_heads"):
        if (heads := getattr(config, name, gpus)) % gpus:
            raise UsageError(
                f"{gpus} GPUs can not share the target's {heads} {name} evenly",
                where="train.topology.target_gpus",
                cure=f"choose a divisor of {heads}",
            )
