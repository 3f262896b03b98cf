"""The data step: text in, packed rows out, and an account of what was left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from dflash.atomic import write_json
from dflash.errors import DataError, UsageError
from dflash.model.target import load_target
from dflash.progress import Progress
from dflash.training import corpus
from dflash.training.config import HELDOUT, ROWS, DataConfig
from dflash.training.encoding import Encoder, keep
from dflash.training.packing import pack, save_rows
from dflash.training.records import Message, Record, read_records, write_records
from dflash.training.responses import cut_prompts, regenerate

TRAIN, REPORT = "train.jsonl", "report.json"


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer beside a model.

    Raises:
        UsageError: there is none; transformers would make up one that turns all text into nothing.
    """
    tokenizer: PreTrainedTokenizerBase
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as failure:
        raise UsageError(f"no tokenizer can be loaded ({failure})", where=str(folder)) from failure
    if not tokenizer("a", add_special_tokens=False)["input_ids"]:
        raise UsageError("there is no tokenizer", where=str(folder), cure="copy tokenizer.json beside the model")
    return tokenizer


def build_dataset(config: DataConfig, target: Path, out: Path, progress: Progress) -> dict[str, Any]:
    """Write packed rows, the JSONL they come from, held-out prompts and a report into `out`; the report.

    Raises:
        DataError: a line can not be read, or nothing is left to train on (with the count of each reason).
    """
    tokenizer = read_tokenizer(target)
    encoder = Encoder(tokenizer, max(config.buckets))
    if not config.file:
        encoder.require_marks(str(target))  # before hours of answering
    source = Path(config.file) if config.file else _answer_prompts(config, tokenizer, target, out, progress)
    records = list(read_records(source))
    training, prompts = withhold(records, config.heldout) if config.file else (records, [])
    write_records(out / HELDOUT, prompts or _heldout_prompts(config))
    return _pack(config, encoder, training, source, out)


def withhold(records: Sequence[Record], count: int) -> tuple[list[Record], list[dict[str, Any]]]:
    """Keep the last `count` conversations, a tenth of them at most, out of training; the rest, and their prompts.

    A prompt is what comes before the assistant's first turn; a conversation that begins with that has none.
    """
    chats = [place for place, record in enumerate(records) if _opening(record)]
    held = set(chats[len(chats) - min(count, len(chats) // 10) :])
    prompts = [{"id": records[place].id, "conversations": _opening(records[place])} for place in sorted(held)]
    return [record for place, record in enumerate(records) if place not in held], prompts


def _opening(record: Record) -> list[Message]:
    return list(takewhile(lambda message: message["role"] != "assistant", record.conversation))


def _heldout_prompts(config: DataConfig) -> list[dict[str, Any]]:
    documents = corpus.split(corpus.standard_library(config.corpus_bytes), "heldout")
    cut = cut_prompts(documents, config.heldout, (config.prompt_bytes_min, config.prompt_bytes_max), config.seed)
    return [{"id": identity, "conversations": [{"role": "user", "content": prompt}]} for identity, prompt in cut]


def _answer_prompts(
    config: DataConfig, tokenizer: PreTrainedTokenizerBase, target: Path, out: Path, progress: Progress
) -> Path:
    """Write `train.jsonl`: prompts from text that the target was not trained on, with its own answers."""
    documents = corpus.split(corpus.standard_library(config.corpus_bytes), "prompts")
    lengths = (config.prompt_bytes_min, config.prompt_bytes_max)
    answered = regenerate(
        load_target(target).to(config.device),
        tokenizer,
        cut_prompts(documents, config.prompts, lengths, config.seed + 1),
        out / "scratch" / "responses",
        progress,
        tokens=config.response_tokens,
        sampled=config.sampled,
        temperature=config.temperature,
        batch=config.batch,
        seed=config.seed,
    )
    write_records(out / TRAIN, answered)
    return out / TRAIN


def _pack(config: DataConfig, encoder: Encoder, records: Sequence[Record], source: Path, out: Path) -> dict[str, Any]:
    kept, reasons, cut = [], Counter[str](), 0
    for _, document, reason in keep(records, encoder, config.block):
        if document is None:
            reasons[str(reason)] += 1
        else:
            kept.append(document)
            cut += len(document.tokens) == max(config.buckets)
    if not kept:
        why = ", ".join(f"{count} x {reason}" for reason, count in sorted(reasons.items()))
        raise DataError(
            f"no document is left to train on ({why})",
            where=str(source),
            cure=f"give documents with at least {config.block} trainable tokens",
        )
    packed = pack(kept, config.buckets)
    save_rows(out / ROWS, packed)
    tokens = sum(len(document.tokens) for document in kept)
    room = sum(len(rows) * rows.length for rows in packed.values())
    report = {
        "documents": len(kept),
        "tokens": tokens,
        "trainable_tokens": int(sum(int(document.trainable.sum()) for document in kept)),
        "buckets": list(config.buckets),
        "rows": {str(bucket): len(rows) for bucket, rows in packed.items()},
        "filled": round(tokens / room, 4),
        "full_length": cut,
        "dropped": dict(sorted(reasons.items())),
    }
    write_json(out / REPORT, report)
    return report
