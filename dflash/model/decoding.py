"""Speculative decoding with a drafter, greedy: the target's own output, in fewer target passes.

A round drafts `block - 1` tokens after the last known one (the anchor), and the target verifies them in one pass.
It gains the drafted tokens that the target would have said, up to the first it would not, plus the target's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from dflash.model.draft import DFlashDraftModel, KeyValue


@dataclass(frozen=True)
class Generation:
    """`tokens` (new ones, in order; the first is the prompt's own successor) and what each round gained.

    The last round's gain is counted whole, even where the wanted number of tokens cuts its tokens off.
    """

    tokens: list[int]
    gained: list[int]

    @property
    def acceptance_length(self) -> float:
        """Mean tokens gained a round; 1.0 is a drafter that is never right, or was never asked."""
        return sum(self.gained) / len(self.gained) if self.gained else 1.0


class _Verifier:
    """The target with its cache; gives the greedy next tokens and the captured features of what it is fed."""

    def __init__(self, target: PreTrainedModel, layer_ids: list[int]) -> None:
        self._target, self._layer_ids = target, layer_ids
        self._cache = DynamicCache(config=target.config)

    def __call__(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """`tokens` (1, N) after what was kept -> the greedy successors (N,) and features (1, N, K * H)."""
        output = self._target(tokens, cache=self._cache, use_cache=True, output_hidden_states=True)
        features = torch.cat([output.hidden_states[layer + 1] for layer in self._layer_ids], dim=-1)
        return output.logits[0].argmax(-1), features

    def forget(self, count: int) -> None:
        """Take the last `count` tokens out of the cache."""
        if count:
            self._cache.crop(-count)


@torch.no_grad()
def generate(
    target: PreTrainedModel,
    draft: DFlashDraftModel,
    prompt: list[int],
    new_tokens: int,
    stop: int | None = None,
) -> Generation:
    """Greedy generation of up to `new_tokens` tokens after `prompt`, ending early at the token `stop`.

    Target and draft have the same dtype and device. The output equals plain greedy decoding as far as the target
    gives the same argmax for one token as for a block of them; float64 makes ties out of rounding practically
    impossible.
    """
    embed = target.get_input_embeddings()
    head = target.get_output_embeddings()
    verify = _Verifier(target, draft.target_layer_ids)
    device = target.device
    successors, features = verify(torch.tensor([prompt], device=device))
    tokens = [int(successors[-1])]
    contexts: list[KeyValue] | None = None
    known, gained = len(prompt), []  # `known` tokens are in the target's cache; the anchor comes right after
    while len(tokens) < new_tokens and tokens[-1] != stop:
        seen = torch.arange(known - features.shape[1], known, device=device)[None]
        contexts = draft.extend(contexts, features, seen)
        block = torch.tensor([[tokens[-1]] + [draft.mask_token_id] * (draft.block_size - 1)], device=device)
        positions = torch.arange(known, known + draft.block_size, device=device)[None]
        drafted = head(draft(embed(block), positions, contexts)[:, 1:]).argmax(-1)
        block[:, 1:] = drafted
        successors, features = verify(block)
        right = int((drafted[0] == successors[:-1]).int().cumprod(0).sum())
        new = successors[: right + 1].tolist()
        if stop in new:
            new = new[: new.index(stop) + 1]
        tokens += new
        gained.append(len(new))
        known += right + 1
        features = features[:, : right + 1]
        verify.forget(draft.block_size - right - 1)
    return Generation(tokens[:new_tokens], gained)
