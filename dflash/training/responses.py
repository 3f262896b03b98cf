"""Prompts cut from held-out text, and the target's own answers to them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dflash.progress import Progress
from dflash.training.corpus import Document
from dflash.training.records import read_records, write_records


def cut_prompts(
    documents: Sequence[Document], count: int, lengths: tuple[int, int], seed: int
) -> list[tuple[str, str]]:
    """`count` (id, prompt) pairs of `lengths` = (shortest, longest) characters, drawn from all documents alike."""
    draw = random.Random(seed)
    usable = [document for document in documents if len(document.text) > 2 * lengths[1]]
    prompts = []
    for _ in range(count):
        document = draw.choice(usable)
        length = draw.randint(*lengths)
        start = draw.randrange(len(document.text) - length)
        prompts.append((f"{document.name}@{start}+{length}", document.text[start : start + length]))
    return prompts


def respond(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    *,
    tokens: int,
    temperature: float,
    seed: int,
) -> list[str]:
    """The target's answers to `prompts`, of at most `tokens` tokens; temperature 0 is greedy.

    What a cut-off answer leaves of a last character that is not whole is left out.
    """
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    batch = tokenizer.apply_chat_template(
        chats,
        add_generation_prompt=True,
        padding=True,
        return_dict=True,
        return_tensors="pt",
        tokenizer_kwargs={"padding_side": "left"},
    )
    sampling: dict[str, Any] = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    torch.manual_seed(seed)
    output = target.generate(
        **batch.to(target.device), max_new_tokens=tokens, pad_token_id=tokenizer.pad_token_id, **sampling
    )
    answers = output[:, batch["input_ids"].shape[1] :]
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    return [text.rstrip("\ufffd") for text in texts]


def regenerate(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[tuple[str, str]],
    folder: Path,
    progress: Progress,
    *,
    tokens: int,
    sampled: float,
    temperature: float,
    batch: int,
    seed: int,
) -> Iterator[dict[str, Any]]:
    """Conversations of all prompts with the target's answers, the share `sampled` of them not greedy.

    Answers are kept in `folder`, one file a batch, written whole: an interrupted generation goes on from there.
    """
    count = -(-len(prompts) // batch)
    for index in range(count):
        path = folder / f"batch-{index:05d}.jsonl"
        part = prompts[index * batch : (index + 1) * batch]
        if not path.exists():
            # Spread the sampled batches evenly: batch i is sampled when the running share steps over an integer.
            heat = temperature if int((index + 1) * sampled) > int(index * sampled) else 0.0
            answers = respond(
                target, tokenizer, [p for _, p in part], tokens=tokens, temperature=heat, seed=seed + index
            )
            write_records(
                path, (_conversation(*pair, answer, heat) for pair, answer in zip(part, answers, strict=True))
            )
        for record in read_records(path):
            yield {"id": record.id, "conversations": [dict(m) for m in record.conversation]}
        progress.update(min((index + 1) * batch, len(prompts)), len(prompts))


def _conversation(identity: str, prompt: str, answer: str, temperature: float) -> dict[str, Any]:
    kind = f"t{temperature:g}" if temperature else "greedy"
    return {
        "id": f"{identity}:{kind}",
        "conversations": [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}],
    }
