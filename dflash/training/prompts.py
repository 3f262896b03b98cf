"""Prompts to evaluate with: the questions of conversations, as the target's chat template asks them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from dflash.errors import DataError, UsageError
from dflash.training.records import Record, opening, read_records


@dataclass(frozen=True)
class Prompts:
    """One data set: its `name`, the token ids of each prompt, and how many records were passed over, by reason."""

    name: str
    chats: list[list[int]]
    passed_over: dict[str, int]


def read_prompts(
    path: Path, tokenizer: PreTrainedTokenizerBase, *, name: str = "", longest: int, limit: int = 0
) -> Prompts:
    """The first `limit` prompts (0: all) of a file of records that are at most `longest` tokens long.

    A prompt is what comes before the assistant's first turn.

    Raises:
        DataError: a record can not be read or asked, or none is left; names the file.
        StorageError: the file can not be read.
    """
    chats: list[list[int]] = []
    passed_over = Counter[str]()
    for record in read_records(path):
        if limit and len(chats) == limit:
            break
        if record.text is not None:
            passed_over["a text, no conversation"] += 1
        elif not (chat := _asked(record, tokenizer)):
            passed_over["begins with an answer"] += 1
        elif len(chat) > longest:
            passed_over[f"longer than {longest} tokens"] += 1
        else:
            chats.append(chat)
    if not chats:
        why = ", ".join(f"{count} x {reason}" for reason, count in sorted(passed_over.items()))
        raise DataError(
            f"no conversation to decode ({why})",
            where=str(path),
            cure="give conversations that begin with a question",
        )
    return Prompts(name or path.stem, chats, dict(sorted(passed_over.items())))


def names_of(files: Sequence[Path]) -> list[str]:
    """What to call the data sets in these files: the files' stems, or their paths where two have the same.

    Raises:
        UsageError: a file is named twice.
    """
    twice = [str(file) for file, count in Counter(files).items() if count > 1]
    if twice:
        raise UsageError("this file is named twice", where=twice[0], cure="name each data set once")
    stems = Counter(file.stem for file in files)
    return [file.stem if stems[file.stem] == 1 else str(file) for file in files]


def _asked(record: Record, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    question = opening(record)
    if not question:
        return []
    try:
        asked: list[int] = tokenizer.apply_chat_template(question, add_generation_prompt=True)["input_ids"]
    except Exception as failure:  # a template is a program of the user's: whatever it raises is about the data
        raise DataError(f"the chat template refused it ({failure})", where=record.where) from failure
    return asked
