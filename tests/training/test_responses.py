"""Answers by the target itself: its own words, the same whatever shares a batch, kept batch by batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3ForCausalLM

from dflash.model.bytelevel import byte_tokenizer
from dflash.progress import Silent
from dflash.training.encoding import Encoder
from dflash.training.records import parse
from dflash.training.responses import regenerate, respond
from tests.tiny import constant_target
from tests.training.test_dataset import exchange


class Count(Silent):
    """Keeps how far the answering came; can stop it there, as an interrupt would."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.done: list[int] = []
        self._stop_at = stop_at

    def update(self, done: int, total: int, metrics: Any = None) -> None:
        self.done.append(done)
        if done == self._stop_at:
            raise KeyboardInterrupt


PROMPTS = [(f"p{i}", "def f(x):\n    return x"[: 5 + 3 * i]) for i in range(5)]


def answers(target: Qwen3ForCausalLM, folder: Path, progress: Count, **changes: Any) -> list[dict[str, Any]]:
    settings: dict[str, Any] = {"tokens": 12, "sampled": 0.5, "temperature": 1.0, "batch": 2, "seed": 3}
    return list(regenerate(target, byte_tokenizer(), PROMPTS, folder, progress, **settings | changes))


def test_an_answer_that_ends_by_itself_is_a_conversation_and_one_that_is_cut_off_is_not_closed(tmp_path: Path):
    """A closed one would teach the drafter an end that the target never said."""
    encode = Encoder(byte_tokenizer(), 64)
    end = byte_tokenizer().eos_token_id
    for token, closed in ((end, True), (ord("x"), False)):
        (record, *_) = answers(constant_target(token), tmp_path / str(token), Count(), sampled=0.0)
        assert ("conversations" in record) is closed
        tokens = encode(parse(json.dumps(record).encode(), "here")).tokens.tolist()
        assert (tokens[-1] == end) is closed


def test_a_greedy_answer_is_the_targets_own_whatever_shares_its_batch(target: Qwen3ForCausalLM):
    tokenizer = byte_tokenizer()
    prompts = [prompt for _, prompt in PROMPTS]
    together = respond(target, tokenizer, prompts, tokens=12, temperature=0.0, seed=0)
    for prompt, (answer, _) in zip(prompts, together, strict=True):
        chat = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)
        tokens = torch.tensor([chat["input_ids"]])
        output = target.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=12, do_sample=False, pad_token_id=0
        )
        own = tokenizer.decode(output[0, tokens.shape[1] :], skip_special_tokens=True)
        assert answer == own.rstrip("\ufffd")


def test_sampled_answers_repeat_with_their_seed_and_differ_with_another(target: Qwen3ForCausalLM):
    def ask(seed: int) -> list[tuple[str, bool]]:
        return respond(target, byte_tokenizer(), ["a", "bc"], tokens=12, temperature=1.0, seed=seed)

    assert ask(1) == ask(1) != ask(2)


@pytest.mark.parametrize(("sampled", "heated"), [(0.0, []), (1.0, [0, 1, 2]), (0.5, [1]), (0.34, [2])])
def test_the_share_sampled_is_spread_over_the_batches(
    target: Qwen3ForCausalLM, tmp_path: Path, sampled: float, heated: list[int]
):
    made = answers(target, tmp_path, Count(), sampled=sampled)
    kinds = ["t1" if index // 2 in heated else "greedy" for index in range(5)]
    assert [each["id"] for each in made] == [f"p{i}:{kind}" for i, kind in enumerate(kinds)]
    assert [exchange(each)[0] for each in made] == [p for _, p in PROMPTS]


def test_no_two_batches_are_sampled_with_the_same_random_numbers(target: Qwen3ForCausalLM, tmp_path: Path):
    settings = {"tokens": 12, "sampled": 1.0, "temperature": 1.0, "batch": 1, "seed": 3}
    made = regenerate(target, byte_tokenizer(), [("a", "x"), ("b", "x")], tmp_path, Count(), **settings)
    one, other = (exchange(each)[1] for each in made)
    assert one != other


def test_an_interrupted_answering_goes_on_with_the_batch_it_was_at(target: Qwen3ForCausalLM, tmp_path: Path):
    whole = answers(target, tmp_path / "whole", Count())
    with pytest.raises(KeyboardInterrupt):
        answers(target, tmp_path / "cut", Count(stop_at=4))
    kept = sorted((tmp_path / "cut").iterdir())
    assert [path.name for path in kept] == ["batch-00000.jsonl", "batch-00001.jsonl"]
    times = [path.stat().st_mtime_ns for path in kept]
    resumed = Count()
    assert answers(target, tmp_path / "cut", resumed) == whole
    assert [path.stat().st_mtime_ns for path in kept] == times
    assert resumed.done == [2, 4, 5]


def test_what_a_cut_off_answer_leaves_of_a_character_is_left_out():
    target = constant_target("€".encode()[0])
    assert respond(target, byte_tokenizer(), ["a", "bcd"], tokens=3, temperature=0.0, seed=0) == [("", False)] * 2
