"""The DFlash draft model (arXiv 2602.06036, section 3).

This one file is also shipped beside exported weights as `dflash.py`, so it imports nothing but torch and
transformers. Shapes: B rows, S context tokens, Q = anchors x block tokens drafted in a row, H hidden size,
K captured target layers, D head size.

The target's captured hidden states are fused once, `hidden_norm(fc(features))`, and shared by all layers; each
layer projects them with its own `k_proj` and `v_proj` and attends over [context ; block] with queries from the
block alone. The token embedding and the LM head are the target's, frozen, and not part of the checkpoint.

A full layer's queries see all of the context and all of their block. A sliding layer's see the `window` positions that
end with their own: the last of the context, and the block up to themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3MLP,
    Qwen3PreTrainedModel,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    rotate_half,
)

Rope = tuple[Tensor, Tensor]
KeyValue = tuple[Tensor, Tensor]

FULL, SLIDING = "full_attention", "sliding_attention"


def capture_layers(num_target_layers: int, count: int) -> list[int]:
    """Ids of the `count` target layers to capture: equally spaced over [1, L-3], rounded; one layer is L // 2.

    The feature of layer `id` is that layer's output, `hidden_states[id + 1]` in transformers.

    Raises:
        ValueError: the target has too few layers for `count` different ids.
    """
    if count == 1:
        ids = [num_target_layers // 2]
    else:
        first, last = 1, num_target_layers - 3
        ids = [round(first + (last - first) * i / (count - 1)) for i in range(count)]
    # Never the last layer either: its entry of transformers' `hidden_states` has passed the final norm.
    if ids != sorted(set(ids)) or ids[-1] > num_target_layers - 2:
        raise ValueError(f"a target of {num_target_layers} layers has no {count} different layers to capture")
    return ids


def rotate(states: Tensor, rope: Rope) -> Tensor:
    """Apply rotary positions. `states` (B, heads, N, D); `rope` cosines and sines (B, N, D)."""
    cos, sin = (part.unsqueeze(1) for part in rope)
    return states * cos + rotate_half(states) * sin


def sliding_mask(length: int, block: int, window: int, device: torch.device) -> Tensor:
    """What a sliding layer's queries see, bool (1, 1, block, length + block): a block right after `length` positions of
    context, each query itself and the `window` - 1 positions before it."""
    key = torch.arange(length + block, device=device)
    query = key[length:, None]
    return ((key <= query) & (key > query - window))[None, None]


class DFlashAttention(nn.Module):
    """Attention of a block over [context ; block]; the context's keys and values come in ready made.

    `window` is in positions, a query's own among them; None is a full layer.
    """

    def __init__(self, config: Qwen3Config, index: int) -> None:
        super().__init__()
        self.window: int | None = config.sliding_window if config.layer_types[index] == SLIDING else None
        self.head_dim = config.head_dim
        queries = config.num_attention_heads * config.head_dim
        pairs = config.num_key_value_heads * config.head_dim
        self.grouped = queries != pairs
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, pairs, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, pairs, bias=config.attention_bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=config.attention_bias)
        self.q_norm = Qwen3RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(config.head_dim, eps=config.rms_norm_eps)

    def _heads(self, states: Tensor) -> Tensor:
        return states.unflatten(-1, (-1, self.head_dim))

    def key_value(self, states: Tensor, rope: Rope) -> KeyValue:
        """Keys and values (B, kv heads, N, D) of `states` (B, N, H)."""
        key = self.k_norm(self._heads(self.k_proj(states))).transpose(1, 2)
        return rotate(key, rope), self._heads(self.v_proj(states)).transpose(1, 2)

    def forward(self, block: Tensor, rope: Rope, context: KeyValue, mask: Tensor | None) -> Tensor:
        """`block` (B, Q, H), `mask` bool (B, 1, Q, S + Q), True where a query may look; None is everywhere."""
        query = rotate(self.q_norm(self._heads(self.q_proj(block))).transpose(1, 2), rope)
        own_key, own_value = self.key_value(block, rope)
        mixed = scaled_dot_product_attention(
            query,
            torch.cat((context[0], own_key), dim=2),
            torch.cat((context[1], own_value), dim=2),
            attn_mask=mask,
            enable_gqa=self.grouped,
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class DFlashDecoderLayer(nn.Module):
    """An ordinary pre-norm residual layer. The fused context passes no layer norm, query, output or MLP."""

    def __init__(self, config: Qwen3Config, index: int) -> None:
        super().__init__()
        self.self_attn = DFlashAttention(config, index)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, block: Tensor, rope: Rope, context: KeyValue, mask: Tensor | None = None) -> Tensor:
        """(B, Q, H) -> (B, Q, H); see `DFlashAttention.forward`."""
        block = block + self.self_attn(self.input_layernorm(block), rope, context, mask)
        return block + self.mlp(self.post_attention_layernorm(block))


class DFlashDraftModel(Qwen3PreTrainedModel):  # type: ignore[misc]  # transformers has no types
    """The drafter. `config` is a Qwen3 configuration with `block_size` and
    `dflash_config = {"mask_token_id", "target_layer_ids", "block_size"}`; its `layer_types` say which layers slide, and
    its `sliding_window` how far they look.

    Training drives `fuse`, the layers and `norm` one region at a time (`dflash.training.regions`), because each
    is compiled on its own; inference keeps a `context` per layer and calls `draft`.
    """

    config_class = Qwen3Config

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__(config)
        self.mask_token_id: int = config.dflash_config["mask_token_id"]
        self.target_layer_ids: list[int] = config.dflash_config["target_layer_ids"]
        self.block_size: int = config.block_size
        self.layers = nn.ModuleList(DFlashDecoderLayer(config, index) for index in range(config.num_hidden_layers))
        self.fc = nn.Linear(len(self.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = Qwen3RotaryEmbedding(config)
        self.post_init()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> DFlashDraftModel:
        """Move or convert all but RoPE's frequencies, which stay float32: in bfloat16 they would be others, and the
        further into a text, the more (0.3162 becomes 0.3164)."""
        frequencies = self.rotary_emb.inv_freq
        super()._apply(fn, recurse)
        if not frequencies.is_meta:
            self.rotary_emb.inv_freq = frequencies.to(self.rotary_emb.inv_freq.device)
        return self

    def fuse(self, features: Tensor) -> Tensor:
        """Captured features (B, S, K * H) -> the context shared by all layers (B, S, H)."""
        return self.hidden_norm(self.fc(features))

    def rope(self, states: Tensor, positions: Tensor) -> Rope:
        """Cosines and sines (B, N, D) of `positions` (B, N), in the dtype of `states`."""
        cos, sin = self.rotary_emb(states, positions)
        return cos, sin

    def forward(self, block: Tensor, positions: Tensor, contexts: list[KeyValue]) -> Tensor:
        """Draft hidden states (B, Q, H) of one block right after the context kept in `contexts`.

        `block` (B, Q, H) are the embeddings of [anchor, mask, mask, ...] at `positions` (B, Q).
        """
        rope = self.rope(block, positions)
        sliding: Tensor | None = None
        for layer, window, context in zip(self.layers, self.windows, contexts, strict=True):
            if window is not None and sliding is None:  # one mask for all: their contexts are as long as each other
                sliding = sliding_mask(context[0].shape[2], block.shape[1], window, block.device)
            block = layer(block, rope, context, None if window is None else sliding)
        return self.norm(block)

    @property
    def windows(self) -> list[int | None]:
        """Each layer's `window`."""
        return [layer.self_attn.window for layer in cast("Iterable[DFlashDecoderLayer]", self.layers)]

    def extend(self, contexts: list[KeyValue] | None, features: Tensor, positions: Tensor) -> list[KeyValue]:
        """Append the keys and values of `features` (B, S, K * H) at `positions` (B, S) to each layer's context, of
        which a sliding layer keeps what a block after it can see: `window` - 1 positions."""
        fused = self.fuse(features)
        rope = self.rope(fused, positions)
        layers = cast("Iterable[DFlashDecoderLayer]", self.layers)
        new = [layer.self_attn.key_value(fused, rope) for layer in layers]
        if contexts is not None:
            new = [
                (torch.cat((key, more_key), dim=2), torch.cat((value, more_value), dim=2))
                for (key, value), (more_key, more_value) in zip(contexts, new, strict=True)
            ]
        return [
            (key, value) if window is None else (key[:, :, 1 - window :], value[:, :, 1 - window :])
            for window, (key, value) in zip(self.windows, new, strict=True)
        ]
