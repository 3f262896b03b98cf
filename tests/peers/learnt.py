"""A small target, and a drafter that has learnt its answers to some prompts, nearly, in the published layout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import Qwen3ForCausalLM

from dflash.model.draft import DFlashDraftModel
from dflash.model.layout import write_layout
from tests.tiny import BLOCK, new_draft, new_target

PROMPTS = [torch.randint(0, 256, (size,), generator=torch.Generator().manual_seed(size)).tolist() for size in (3, 8)]
NEW_TOKENS = 32
LENGTH = 48
"""Of a text that is learnt: no less than a prompt and its answer."""
STEPS = 160


@dataclass(frozen=True)
class Pair:
    """Folders of a target and of its drafter, in float32."""

    target: Path
    export: Path


def answered(target: Qwen3ForCausalLM, prompt: list[int]) -> Tensor:
    """`prompt` and the target's greedy answer behind it, `LENGTH` tokens in all, by transformers."""
    tokens = torch.tensor([prompt])
    mask, size = torch.ones_like(tokens), LENGTH - len(prompt)
    said = target.generate(
        tokens, attention_mask=mask, max_new_tokens=size, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return said[0]


def learn(draft: DFlashDraftModel, target: Qwen3ForCausalLM) -> None:
    """Train on one block of each answer a step, by what inference calls: no part of the trainer decides what peers
    are given. Most drafts become right, and some do not."""
    tokens = torch.stack([answered(target, prompt) for prompt in PROMPTS])
    with torch.no_grad():
        states = target(tokens, output_hidden_states=True).hidden_states
    features = torch.cat([states[layer + 1] for layer in draft.target_layer_ids], dim=-1)
    embed, head = target.get_input_embeddings(), target.get_output_embeddings()
    optimizer = torch.optim.AdamW(draft.parameters(), lr=8e-3)
    for step in range(STEPS):
        anchor = 3 + (step * 7) % (LENGTH - BLOCK - 3)
        positions = torch.arange(anchor + BLOCK).expand(len(PROMPTS), -1)
        block = torch.full((len(PROMPTS), BLOCK), draft.mask_token_id)
        block[:, 0] = tokens[:, anchor]
        contexts = draft.extend(None, features[:, :anchor], positions[:, :anchor])
        hidden = draft(embed(block), positions[:, anchor:], contexts)
        optimizer.zero_grad()
        cross_entropy(head(hidden[:, 1:]).flatten(0, 1), tokens[:, anchor + 1 : anchor + BLOCK].flatten()).backward()
        optimizer.step()


def make_pair(folder: Path) -> Pair:
    """Make both in `folder`."""
    target, draft = new_target(), new_draft()
    learn(draft, target)
    made = Pair(folder / "target", folder / "export")
    target.float().save_pretrained(made.target)
    made.export.mkdir()
    write_layout(draft.float(), made.export)
    return made
