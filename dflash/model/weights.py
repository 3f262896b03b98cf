"""A drafter's weights as training wants them: what is multiplied together lies together, and all of it in one vector.

Queries, keys and values of a layer are one matrix. One vector of values and one of gradients mean one all-reduce, one
norm and one optimizer kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dflash.model.draft import DFlashDraftModel

_ALIGNED = 128
"""Each matrix begins at a multiple of this many elements: compiled kernels read 16 bytes at a time."""


class LayerWeights(NamedTuple):
    """One layer's: `qkv` ((heads + 2 kv heads) * D, H), the others as the model has them."""

    input_norm: Tensor
    qkv: Tensor
    q_norm: Tensor
    k_norm: Tensor
    output: Tensor
    post_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True)
class DraftWeights:
    """All of a drafter's: its layers, fusion's matrix `fc` and norm, and the last norm."""

    layers: list[LayerWeights]
    fc: Tensor
    hidden_norm: Tensor
    norm: Tensor


_LAYER = (
    ("input_layernorm",),
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.q_norm",),
    ("self_attn.k_norm",),
    ("self_attn.o_proj",),
    ("post_attention_layernorm",),
    ("mlp.gate_proj",),
    ("mlp.up_proj",),
    ("mlp.down_proj",),
)
_WHOLE = (("fc",), ("hidden_norm",), ("norm",))


def _names(layers: int) -> Iterator[tuple[str, ...]]:
    """The model's parameters that make each tensor of a `DraftWeights`, in its order."""
    for index in range(layers):
        for parts in _LAYER:
            yield tuple(f"layers.{index}.{part}.weight" for part in parts)
    for parts in _WHOLE:
        yield tuple(f"{part}.weight" for part in parts)


def _assembled(tensors: Sequence[Tensor]) -> DraftWeights:
    *layers, fc, hidden_norm, norm = tensors
    size = len(_LAYER)
    return DraftWeights(
        [LayerWeights(*layers[first : first + size]) for first in range(0, len(layers), size)], fc, hidden_norm, norm
    )


def weights_of(draft: DFlashDraftModel) -> DraftWeights:
    """The weights of `draft` as copies that pass their gradients on to its parameters."""
    parameters = dict(draft.named_parameters())
    joined = [torch.cat([parameters[name] for name in names]) for names in _names(len(draft.layers))]
    return _assembled(joined)


class FlatWeights:
    """One vector of all weights, `values`, and one of their gradients, `gradients`, both (P,).

    `weights` are the tensors to compute with, views of `values`; the model's own parameters become views of it too, so
    that it can be saved, and loaded into, at any time. A backward pass hands each gradient over to `gradients` as soon
    as it is whole; after `begin_step()` the first replaces what is there, and later ones are added.
    """

    def __init__(self, draft: DFlashDraftModel, gradients: torch.dtype | None = None) -> None:
        """`draft` is where, and of the dtype, that it is to stay; `gradients` is their dtype, if it is another.

        Raises:
            ValueError: it has parameters that training does not know, such as biases.
        """
        parameters = dict(draft.named_parameters())
        groups = list(_names(len(draft.layers)))
        if unknown := parameters.keys() - {name for names in groups for name in names}:
            raise ValueError(f"parameters that training does not know: {', '.join(sorted(unknown))}")
        sizes = [sum(parameters[name].numel() for name in names) for names in groups]
        room = [-(-size // _ALIGNED) * _ALIGNED for size in sizes]
        like = next(iter(parameters.values()))
        self.values = torch.zeros(sum(room), dtype=like.dtype, device=like.device)
        self.gradients = torch.zeros_like(self.values, dtype=gradients)
        self._begun: set[int] = set()
        self._spans: dict[str, tuple[int, torch.Size]] = {}
        tensors: list[Tensor] = []
        place = 0
        for names, size, space in zip(groups, sizes, room, strict=True):
            begin = place
            for name in names:
                self._spans[name] = begin, parameters[name].shape
                begin += parameters[name].numel()
            shape = (-1, *parameters[names[0]].shape[1:])
            tensor = self.values.detach()[place : place + size].view(shape)
            self._collect(len(tensors), tensor.requires_grad_(), self.gradients[place : place + size].view(shape))
            tensors.append(tensor)
            place += space
        for name, view in self.named(self.values).items():
            view.copy_(parameters[name].data)
            parameters[name].data = view
        self.weights = _assembled(tensors)

    def begin_step(self) -> None:
        """Forget the gradients that there are."""
        self._begun.clear()

    def _collect(self, number: int, leaf: Tensor, gradient: Tensor) -> None:
        """Whenever `leaf` has a gradient, move it into `gradient`: cheaper than zeros to which autograd adds, and in
        a wider dtype if that is one."""

        def moved(tensor: Tensor) -> None:
            assert tensor.grad is not None
            if number in self._begun:
                gradient.add_(tensor.grad)
            else:
                gradient.copy_(tensor.grad)
                self._begun.add(number)
            tensor.grad = None

        leaf.register_post_accumulate_grad_hook(moved)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """The parts of a vector (P,) that belong to each of the model's parameters, by name; views."""
        return {
            name: vector.detach()[place : place + shape.numel()].view(shape)
            for name, (place, shape) in self._spans.items()
        }
