"""Prompts cut from held-out text, and the target's own answers to them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dflash.errors import DataError
from dflash.progress import Progress
from dflash.training.corpus import Document
from dflash.training.records import as_json, read_records, write_records


def cut_prompts(
    documents: Sequence[Document], count: int, lengths: tuple[int, int], seed: int
) -> list[tuple[str, str]]:
    """`count` (id, prompt) pairs of `lengths` = (shortest, longest) characters, drawn from all documents alike.

    Raises:
        DataError: no document is longer than two prompts.
    """
    draw = random.Random(seed)
    usable = [document for document in documents if len(document.text) > 2 * lengths[1]]
    if not usable:
        raise DataError(
            f"no prompt of {lengths[1]} characters can be cut from {len(documents)} documents",
            cure="raise corpus_bytes, or lower prompt_bytes_max",
        )
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
    options: Mapping[str, Any] | None = None,
) -> list[tuple[str, bool]]:
    """The target's answers to `prompts`, of at most `tokens` tokens, and whether each came to its end by itself.

    Temperature 0 is greedy; `options` are the chat template's. What a cut-off answer leaves of a last character that is
    not whole is left out.
    """
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    batch = tokenizer.apply_chat_template(
        chats,
        add_generation_prompt=True,
        padding=True,
        return_dict=True,
        return_tensors="pt",
        tokenizer_kwargs={"padding_side": "left"},
        **(options or {}),
    )
    sampling: dict[str, Any] = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    torch.manual_seed(seed)
    output = target.generate(
        **batch.to(target.device), max_new_tokens=tokens, pad_token_id=tokenizer.pad_token_id, **sampling
    )
    answers = output[:, batch["input_ids"].shape[1] :]
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    ended = (answers == tokenizer.eos_token_id).any(dim=1).tolist()
    return [(text.rstrip("\ufffd"), end) for text, end in zip(texts, ended, strict=True)]


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
    options: Mapping[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Records of all prompts with the target's answers, the share `sampled` of them not greedy.

    An answer that came to its end is a conversation. One that was cut off is a text: a conversation would be closed
    by the chat template with an end that the target never said, and the drafter would learn it.

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
                target,
                tokenizer,
                [p for _, p in part],
                tokens=tokens,
                temperature=heat,
                seed=seed + index,
                options=options,
            )
            made = (
                _record(tokenizer, *pair, *answer, heat, options or {})
                for pair, answer in zip(part, answers, strict=True)
            )
            write_records(path, made)
        yield from map(as_json, read_records(path))
        progress.update(min((index + 1) * batch, len(prompts)), len(prompts))


def _record(
    tokenizer: PreTrainedTokenizerBase,
    identity: str,
    prompt: str,
    answer: str,
    ended: bool,
    temperature: float,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    kind = f"t{temperature:g}" if temperature else "greedy"
    chat = [{"role": "user", "content": prompt}]
    if ended:
        turns = [*chat, {"role": "assistant", "content": answer}]
        return {"id": f"{identity}:{kind}", "conversations": turns}
    asked = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False, **options)
    return {"id": f"{identity}:{kind}", "text": f"{asked}{answer}"}
