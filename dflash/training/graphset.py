"""The closed set of graphs of a training, as data: what pre-warm compiles, and the vault's key of it.

Nothing in it is a weight or a row of text, so it is known before there is either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import chain
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple

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


class Place(NamedTuple):
    """A worker that has graphs: its role, its rank, and its number on its host, which is its GPU's."""

    role: str
    rank: int
    number: int


@dataclass(frozen=True)
class GraphSet:
    """A training's configuration, its target's (transformers' fields) and its buckets, in tokens; and how many workers
    are on each of its `hosts`, in the order of ranks (empty: all are on one)."""

    train: TrainConfig
    target: Mapping[str, Any]
    buckets: tuple[int, ...]
    hosts: tuple[int, ...] = ()

    @staticmethod
    def of(train: TrainConfig, target: PretrainedConfig, buckets: Sequence[int], hosts: Sequence[int] = ()) -> GraphSet:
        """The set of a training of a drafter for `target`."""
        fields = {name: value for name, value in target.to_dict().items() if name not in _NO_SHAPE}
        return GraphSet(train, fields, tuple(sorted(buckets)), tuple(hosts))

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> GraphSet:
        """What `to_json` gave."""
        return GraphSet(train_config(plain["train"]), plain["target"], tuple(plain["buckets"]), tuple(plain["hosts"]))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        lists = {"buckets": list(self.buckets), "hosts": list(self.hosts)}
        return {"train": asdict(self.train), "target": dict(self.target), **lists}

    def target_config(self) -> PretrainedConfig:
        """The target's configuration as transformers has it."""
        return AutoConfig.for_model(**self.target)

    def places(self) -> list[Place]:
        """The workers whose graphs are their own: inductor's key holds the index of a GPU, so there it is one for each
        role and GPU, while on a CPU all workers of a role share theirs. A colocated drafter's are its target's, too."""
        own: dict[tuple[str, int], Place] = {}
        for each in chain(*self.layouts()):
            own.setdefault((each.role, each.number if self.train.device == "cuda" else 0), each)
        return sorted(own.values(), key=lambda each: (ROLES.index(each.role), each.rank))

    def layouts(self) -> list[list[Place]]:
        """The workers that have graphs, as they will run together on a host: for each of its hosts, but once for those
        that are alike. A target that is spread over GPUs has none."""
        topology, first = self.train.topology, 0
        hosts = self.hosts if self.train.device == "cuda" else ()
        found: dict[tuple[tuple[str, int], ...], list[Place]] = {}
        for count in hosts or (topology.size,):
            ranks = range(first, first + count)
            roles = ["drafter" if rank in topology.drafter_ranks else "target" for rank in ranks]
            places = [Place(role, rank, rank - first) for role, rank in zip(roles, ranks, strict=True)]
            places = [each for each in places if topology.target_gpus == 1 or each.role == "drafter"]
            if places:
                found.setdefault(tuple((each.role, each.number) for each in places), places)
            first += count
        return list(found.values())

    def key(self) -> dict[str, str]:
        """Everything that decides whether a cache of these graphs is valid on this machine, and nothing that only
        steers the training."""
        train = asdict(self.train)
        shapes: dict[str, Any] = {path: reduce(getitem, path.split("."), train) for path in GRAPH_FIELDS}
        if self.train.device == "cpu":  # a role's workers share their graphs, however many they are
            del shapes["topology"]
            if self.train.topology.target_gpus > 1:
                shapes["spread"] = True
        elif self.hosts:
            shapes["hosts"] = list(self.hosts)
        shapes |= {"target": dict(self.target), "buckets": list(self.buckets)}
        room = Path(__file__).parent
        graphs = [room / f"{name}.py" for name in _SOURCES]
        behind = [room.parent / "compilation" / f"{name}.py" for name in ("gate", "numbering", "variants")]
        return ingredients(shapes, [*graphs, *(room.parent / "model").glob("*.py"), *behind], self._devices())

    def _devices(self) -> list[str]:
        """The ordered map from a worker's number to its device."""
        count = max(self.hosts, default=self.train.topology.size)
        if self.train.device == "cpu":
            return ["cpu"]
        import torch

        found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        return [f"cuda:{index} {each.name} {each.major}.{each.minor}" for index, each in enumerate(found[:count])]
