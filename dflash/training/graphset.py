"""The closed set of graphs of a training, as data: what pre-warm compiles, and the vault's key of it.

Nothing in it is a weight or a row of text, so it is known before there is either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from dflash.compilation.ingredients import ingredients
from dflash.training.config import GRAPH_FIELDS, ROLES, TrainConfig, train_config

_NO_SHAPE = {
    "_name_or_path",
    "architectures",
    "chunk_size_feed_forward",
    "dtype",
    "id2label",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
    "transformers_version",
    "use_cache",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "initializer_range",
}
"""Fields of a model's config.json that shape no graph, and differ between a model and its copy."""

_SOURCES = ("batches", "crew", "drafts", "muon", "optimizer", "regions", "sources", "workers")


@dataclass(frozen=True)
class GraphSet:
    """A training's configuration, its target's (transformers' fields) and its buckets, in tokens."""

    train: TrainConfig
    target: Mapping[str, Any]
    buckets: tuple[int, ...]

    @staticmethod
    def of(train: TrainConfig, target: PretrainedConfig, buckets: Sequence[int]) -> GraphSet:
        """The set of a training of a drafter for `target`."""
        fields = {name: value for name, value in target.to_dict().items() if name not in _NO_SHAPE}
        return GraphSet(train, fields, tuple(sorted(buckets)))

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> GraphSet:
        """What `to_json` gave."""
        return GraphSet(train_config(plain["train"]), plain["target"], tuple(plain["buckets"]))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"train": asdict(self.train), "target": dict(self.target), "buckets": list(self.buckets)}

    def target_config(self) -> PretrainedConfig:
        """The target's configuration as transformers has it."""
        return AutoConfig.for_model(**self.target)

    def places(self) -> list[tuple[str, int]]:
        """Role and rank of each worker whose graphs are its own: inductor's key holds the index of a GPU, so there it
        is every worker, while on a CPU all workers of a role share theirs. A colocated drafter's are its target's, too.
        """
        drafters = self.train.topology.drafter_ranks
        found = [("drafter" if rank in drafters else "target", rank) for rank in self.layout()]
        if self.train.device == "cuda":
            return found
        return [next(each for each in found if each[0] == role) for role in ROLES if role in dict(found)]

    def layout(self) -> list[int]:
        """The ranks of all workers that have graphs, as they will run: a target that is spread over GPUs has none."""
        topology = self.train.topology
        return [*(topology.target_ranks if topology.target_gpus == 1 else ()), *topology.drafter_ranks]

    def key(self) -> dict[str, str]:
        """Everything that decides whether a cache of these graphs is valid on this machine, and nothing that only
        steers the training."""
        train = asdict(self.train)
        shapes: dict[str, Any] = {path: reduce(getitem, path.split("."), train) for path in GRAPH_FIELDS}
        if self.train.device == "cpu":  # a role's workers share their graphs, however many they are
            del shapes["topology"]
            if self.train.topology.target_gpus > 1:
                shapes["spread"] = True
        shapes |= {"target": dict(self.target), "buckets": list(self.buckets)}
        room = Path(__file__).parent
        graphs = [room / f"{name}.py" for name in _SOURCES]
        behind = [room.parent / "compilation" / f"{name}.py" for name in ("gate", "variants")]
        return ingredients(shapes, [*graphs, *(room.parent / "model").glob("*.py"), *behind], self._devices())

    def _devices(self) -> list[str]:
        """The ordered map from worker to device."""
        count = self.train.topology.size
        if self.train.device == "cpu":
            return ["cpu"]
        import torch

        found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        return [f"cuda:{index} {each.name} {each.major}.{each.minor}" for index, each in enumerate(found[:count])]
