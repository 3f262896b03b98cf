"""Speculative decoding with a drafter: the target's own output, in fewer target passes.

A round drafts `block - 1` tokens after the last known one (the anchor), and the target verifies them in one pass.
It gains the drafted tokens that the target accepts, up to the first it does not, plus one of the target's own. At
temperature 0 the target accepts what it would have said; above, the rule is that of `dflash.model.acceptance`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from dflash.model.acceptance import draw, probabilities, verify
from dflash.model.draft import DFlashDraftModel, KeyValue


@dataclass(frozen=True)
class Generation:
    """`tokens` (new ones, in order; the first is the prompt's own successor) and what each round gained.

    `accepted` are the drafted tokens that the target accepted in each round; `gained` has its own one as well, and
    ends at a stop token. The last round's gain is counted whole, even where the wanted number of tokens cuts its
    tokens off.
    """

    tokens: list[int]
    gained: list[int]
    accepted: list[int]

    @property
    def acceptance_length(self) -> float:
        """Mean tokens gained a round; 1.0 is a drafter that is never right, or was never asked."""
        return sum(self.gained) / len(self.gained) if self.gained else 1.0


class _Target:
    """The target with its cache; gives the logits and the captured features of what it is fed."""

    def __init__(self, target: PreTrainedModel, layer_ids: list[int]) -> None:
        self._target, self._layer_ids = target, layer_ids
        self._cache = DynamicCache(config=target.config)
        self._cache.activate_past_recording()  # a sliding window would let go of what a refused draft needs again

    def __call__(self, tokens: Tensor, last: int) -> tuple[Tensor, Tensor]:
        """`tokens` (1, N) after what was kept -> logits (last, V) of the `last` of them, and features (1, N, K * H)."""
        output = self._target(tokens, cache=self._cache, use_cache=True, output_hidden_states=True, logits_to_keep=last)
        features = torch.cat([output.hidden_states[layer + 1] for layer in self._layer_ids], dim=-1)
        return output.logits[0], features

    def forget(self, count: int) -> None:
        """Take the last `count` tokens out of the cache."""
        self._cache.crop(-count)


@torch.no_grad()
def generate(
    target: PreTrainedModel,
    draft: DFlashDraftModel,
    prompt: list[int],
    new_tokens: int,
    stop: int | Collection[int] | None = None,
    *,
    temperature: float = 0.0,
    draft_temperature: float | None = None,
    generator: torch.Generator | None = None,
) -> Generation:
    """Generate up to `new_tokens` tokens after `prompt`, ending early at the token `stop`, or at any of several.

    Target and draft have the same dtype and device. At temperature 0 the output equals plain greedy decoding as far
    as the target gives the same argmax for one token as for a block of them; float64 makes ties out of rounding
    practically impossible. Above it, the output has the distribution softmax(logits / temperature) of the target.

    Drafted tokens are drawn at `draft_temperature` (0 is the argmax; None is the target's own temperature): it decides
    how many are accepted, never what comes out. `generator`, on the target's device, makes the draws; None is torch's.
    """
    stops = {stop} if isinstance(stop, int) else set(stop or ())
    heat = temperature if draft_temperature is None else draft_temperature
    embed = target.get_input_embeddings()
    head = target.get_output_embeddings()
    feed = _Target(target, draft.target_layer_ids)
    device = target.device
    if temperature == heat == 0:
        generator = torch.Generator(device)  # its draws decide nothing, and torch's own stay as they were
    logits, features = feed(torch.tensor([prompt], device=device), last=1)
    tokens = draw(probabilities(logits, temperature), generator).tolist()
    contexts: list[KeyValue] | None = None
    known, gained, accepted = len(prompt), [], []  # `known` tokens are in the target's cache; the anchor comes after
    while len(tokens) < new_tokens and tokens[-1] not in stops:
        seen = torch.arange(known - features.shape[1], known, device=device)[None]
        contexts = draft.extend(contexts, features, seen)
        block = torch.tensor([[tokens[-1]] + [draft.mask_token_id] * (draft.block_size - 1)], device=device)
        positions = torch.arange(known, known + draft.block_size, device=device)[None]
        q = probabilities(head(draft(embed(block), positions, contexts)[0, 1:]), heat)
        drafted = draw(q, generator)
        block[0, 1:] = drafted
        logits, features = feed(block, last=draft.block_size)
        right, own = verify(drafted, q, probabilities(logits, temperature), generator)
        new = [*drafted[:right].tolist(), int(own)]
        ends = [place for place, token in enumerate(new) if token in stops]
        if ends:
            new = new[: ends[0] + 1]
        tokens += new
        gained.append(len(new))
        accepted.append(right)
        known += right + 1
        features = features[:, : right + 1]
        feed.forget(draft.block_size - right - 1)
    return Generation(tokens[:new_tokens], gained, accepted)
