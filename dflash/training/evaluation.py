"""What a drafter is worth: real speculative decoding on held-out prompts, against the target's own greedy output."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from dflash.errors import DataError
from dflash.model.decoding import Generation, generate
from dflash.model.draft import DFlashDraftModel
from dflash.model.layout import load_draft
from dflash.model.target import load_target
from dflash.progress import Progress
from dflash.training.config import EvaluateConfig
from dflash.training.dataset import read_tokenizer
from dflash.training.drafts import fresh_draft
from dflash.training.records import read_records


def greedy(target: PreTrainedModel, prompt: list[int], new_tokens: int) -> list[int]:
    """The target's own greedy output by transformers' `generate`, an implementation that is not ours."""
    tokens = torch.tensor([prompt], device=target.device)
    output = target.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    answer: list[int] = output[0, len(prompt) :].tolist()
    return answer


def evaluate(config: EvaluateConfig, target: Path, draft: Path, prompts: Path, progress: Progress) -> dict[str, Any]:
    """Decode all conversations of the JSONL `prompts`, trained and untrained; the figures.

    `acceptance_length` is tokens gained a target pass, over all rounds of all prompts.

    Raises:
        DataError: `prompts` holds no conversation.
    """
    torch.set_num_threads(config.threads)
    dtype = getattr(torch, config.dtype)
    tokenizer = read_tokenizer(target)
    chats = [
        tokenizer.apply_chat_template(list(r.conversation), add_generation_prompt=True)["input_ids"]
        for r in read_records(prompts)
        if r.conversation
    ]
    if not chats:
        raise DataError("no conversation to decode", where=str(prompts))
    model = load_target(target, dtype).to(config.device)
    trained = load_draft(draft).to(config.device, dtype)
    untrained = fresh_draft(trained.config, config.seed).to(config.device, dtype).eval()
    begun = time.monotonic()
    references = [greedy(model, chat, config.new_tokens) for chat in chats]
    plain = time.monotonic() - begun
    begun = time.monotonic()
    drafted: list[Generation] = []
    for number, chat in enumerate(chats, start=1):
        drafted.append(generate(model, trained, chat, config.new_tokens))
        progress.update(number, len(chats), {"accept_len": mean_gain(drafted)})
    speculative = time.monotonic() - begun
    same = sum(d.tokens == r for d, r in zip(drafted, references, strict=True))
    return {
        "acceptance_length": round(mean_gain(drafted), 4),
        "acceptance_length_untrained": round(_untrained(model, untrained, chats, config), 4),
        "acceptance_by_prompt": [round(d.acceptance_length, 3) for d in drafted],
        "greedy_identical": same,
        "greedy_total": len(chats),
        "new_tokens": config.new_tokens,
        "plain_tokens_per_s": round(len(chats) * config.new_tokens / plain, 1),
        "speculative_tokens_per_s": round(len(chats) * config.new_tokens / speculative, 1),
    }


def mean_gain(generations: list[Generation]) -> float:
    """Tokens gained a round, over all rounds."""
    gains = [gain for generation in generations for gain in generation.gained]
    return sum(gains) / len(gains)


def _untrained(
    model: PreTrainedModel, draft: DFlashDraftModel, chats: list[list[int]], config: EvaluateConfig
) -> float:
    part = chats[: config.untrained_prompts]
    return mean_gain([generate(model, draft, chat, config.new_tokens) for chat in part])
