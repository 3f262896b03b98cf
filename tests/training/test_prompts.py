"""Prompts are the questions of conversations; what is passed over is counted, and a file without any is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash.errors import DataError, UsageError
from dflash.model.bytelevel import byte_tokenizer
from dflash.training.prompts import Prompts, names_of, read_prompts
from dflash.training.records import write_records

RECORDS: list[dict[str, Any]] = [
    {"conversations": [{"role": "system", "content": "S"}, {"role": "user", "content": "ab"}]},
    {"conversations": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "answer"}]},
    {"conversations": [{"role": "assistant", "content": "hello"}, {"role": "user", "content": "d"}]},
    {"text": "no question"},
    {"conversations": [{"role": "user", "content": "a longer question"}]},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some.jsonl"
    write_records(path, RECORDS)
    return path


def test_a_prompt_is_what_comes_before_the_assistants_first_turn(file: Path):
    tokenizer = byte_tokenizer()
    found = read_prompts(file, tokenizer, longest=10)
    texts = [tokenizer.decode(chat) for chat in found.chats]
    assert texts == ["<|user|>S<|user|>ab<|assistant|>", "<|user|>c<|assistant|>"]
    assert found.name == "some"
    assert found.passed_over == {
        "a text, no conversation": 1,
        "begins with an answer": 1,
        "longer than 10 tokens": 1,
    }


def test_a_limit_takes_the_first_prompts(file: Path):
    tokenizer = byte_tokenizer()
    every = read_prompts(file, tokenizer, longest=100).chats
    assert len(every) == 3
    assert read_prompts(file, tokenizer, name="mine", longest=100, limit=2) == Prompts("mine", every[:2], {})


def test_a_file_without_a_prompt_is_refused_with_the_reasons(file: Path):
    with pytest.raises(DataError) as refusal:
        read_prompts(file, byte_tokenizer(), longest=2)
    assert str(refusal.value) == (
        f"{file}: no conversation to decode (1 x a text, no conversation, 1 x begins with an answer, "
        "3 x longer than 2 tokens); give conversations that begin with a question"
    )


def test_what_the_chat_template_refuses_is_named_by_its_line(file: Path):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}x"
    with pytest.raises(DataError, match=r"some.jsonl:1: the chat template refused it \(no system\)"):
        read_prompts(file, tokenizer, longest=100)


def test_data_sets_have_their_files_names_or_paths_where_those_are_alike():
    assert names_of([Path("a/x.jsonl"), Path("b/x.jsonl"), Path("b/y.jsonl")]) == ["a/x.jsonl", "b/x.jsonl", "y"]
    with pytest.raises(UsageError, match=r"a/x.jsonl: this file is named twice"):
        names_of([Path("a/x.jsonl"), Path("b.jsonl"), Path("a/x.jsonl")])
