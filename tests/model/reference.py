"""The drafter, written slowly from the paper (arXiv 2602.06036, section 3), to hold the real one against.

One anchor at a time, over its own document alone: no packing, no mask, no caches; every head and every query in a
loop. It shares nothing with the package but the names of the tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Qwen3Config


@dataclass(frozen=True)
class Rules:
    """What a drafted token may look at. Tests bend one rule to see that the comparison would notice."""

    context: Callable[[int, int], bool] = lambda position, anchor: position < anchor
    block: Callable[[int, int], bool] = lambda query, key: True
    first_position: Callable[[int], int] = lambda anchor: anchor
    sliding_context: Callable[[int, int, int, int], bool] = lambda position, anchor, offset, window: (
        anchor + offset - (window - 1) <= position < anchor
    )
    sliding_block: Callable[[int, int], bool] = lambda query, key: key <= query


def rms_norm(vector: Tensor, weight: Tensor, eps: float) -> Tensor:
    return vector / (vector.pow(2).mean() + eps).sqrt() * weight


def turned(vector: Tensor, position: int, theta: float) -> Tensor:
    """Rotary position: component i turns with component i + D/2."""
    half = len(vector) // 2
    out = torch.empty_like(vector)
    for i in range(half):
        angle = torch.tensor(position * theta ** (-2 * i / len(vector)), dtype=torch.float64)
        out[i] = vector[i] * angle.cos() - vector[i + half] * angle.sin()
        out[i + half] = vector[i + half] * angle.cos() + vector[i] * angle.sin()
    return out


class SlowDraft:
    """A drafter's tensors, and what they mean."""

    def __init__(self, weights: Mapping[str, Tensor], config: Qwen3Config, rules: Rules | None = None) -> None:
        self.w, self.config, self.rules = weights, config, rules or Rules()
        self.theta = config.rope_parameters["rope_theta"]

    def norm(self, vector: Tensor, name: str) -> Tensor:
        return rms_norm(vector, self.w[f"{name}.weight"], self.config.rms_norm_eps)

    def heads(self, vector: Tensor, projection: str, norm: str | None, position: int) -> list[Tensor]:
        """One state's heads; with `norm`, normed and turned to its position, as queries and keys are."""
        parts = list((self.w[f"{projection}.weight"] @ vector).split(self.config.head_dim))
        if norm is None:
            return parts
        return [turned(self.norm(part, norm), position, self.theta) for part in parts]

    def sees(self, index: int, query: int, anchor: int, context: int) -> list[int]:
        """What the block's token `query` looks at in a layer: places among `context` tokens, and the block's after."""
        rules, window = self.rules, self.config.sliding_window
        if self.config.layer_types[index] == "sliding_attention":
            seen = [place for place in range(context) if rules.sliding_context(place, anchor, query, window)]
            own = [key for key in range(self.config.block_size) if rules.sliding_block(query, key)]
        else:
            seen = [place for place in range(context) if rules.context(place, anchor)]
            own = [key for key in range(self.config.block_size) if rules.block(query, key)]
        return seen + [context + key for key in own]

    def attend(self, index: int, states: list[Tensor], context: list[Tensor], anchor: int) -> list[Tensor]:
        """`states` are the block's, at the anchor's position and after; `context` the document's fused features."""
        name = f"layers.{index}.self_attn"
        first = self.rules.first_position(anchor)
        group = self.config.num_attention_heads // self.config.num_key_value_heads
        placed = [*enumerate(context), *enumerate(states, start=first)]
        all_keys = [self.heads(state, f"{name}.k_proj", f"{name}.k_norm", position) for position, state in placed]
        all_values = [self.heads(state, f"{name}.v_proj", None, position) for position, state in placed]
        mixed = []
        for query, state in enumerate(states):
            seen = self.sees(index, query, anchor, len(context))
            keys, values = [all_keys[place] for place in seen], [all_values[place] for place in seen]
            heads = []
            for head, q in enumerate(self.heads(state, f"{name}.q_proj", f"{name}.q_norm", first + query)):
                scores = torch.stack([q @ key[head // group] for key in keys]) / self.config.head_dim**0.5
                weights = scores.exp() / scores.exp().sum()
                heads.append(sum(weight * value[head // group] for weight, value in zip(weights, values, strict=True)))
            mixed.append(self.w[f"{name}.o_proj.weight"] @ torch.cat(heads))
        return mixed

    def mlp(self, layer: str, state: Tensor) -> Tensor:
        gate, up, down = (self.w[f"{layer}.mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
        opened = gate @ state
        return down @ (opened / (1 + (-opened).exp()) * (up @ state))

    def __call__(self, tokens: Tensor, features: Tensor, anchor: int, embedding: Tensor) -> Tensor:
        """Drafted states (block, H) after one document's `tokens` (N,) with `features` (N, K * H)."""
        context = [self.norm(self.w["fc.weight"] @ feature, "hidden_norm") for feature in features]
        mask = self.config.dflash_config["mask_token_id"]
        states = [embedding[tokens[anchor]]] + [embedding[mask]] * (self.config.block_size - 1)
        for index in range(self.config.num_hidden_layers):
            layer = f"layers.{index}"
            attended = self.attend(index, [self.norm(s, f"{layer}.input_layernorm") for s in states], context, anchor)
            states = [state + more for state, more in zip(states, attended, strict=True)]
            states = [s + self.mlp(layer, self.norm(s, f"{layer}.post_attention_layernorm")) for s in states]
        return torch.stack([self.norm(state, "norm") for state in states])


def slow_terms(
    logits: Tensor, tokens: Tensor, trainable: Tensor, anchor: int, gamma: float
) -> list[tuple[float, float]]:
    """One block's (CE_k, w_k) for k = 1.., with w_k = exp(-(k - 1) / gamma).

    `logits` (block, V); slot k is to say `tokens[anchor + k]` of its document; (0, 0) if that is not there, or not
    trainable.
    """
    terms = []
    for slot in range(1, len(logits)):
        place = anchor + slot
        if 0 <= place < len(tokens) and trainable[place]:
            surprise = float(logits[slot].logsumexp(0) - logits[slot, tokens[place]])
            terms.append((surprise, math.exp(-(slot - 1) / gamma)))
        else:
            terms.append((0.0, 0.0))
    return terms
