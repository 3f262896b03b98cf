"""The byte-level tokenizer: what it says is what the bytes are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from dflash.model.bytelevel import ASSISTANT, END, MASK_ID, PAD, USER, VOCABULARY, byte_tokenizer

MARKERS = (USER, ASSISTANT, END, PAD)
CHAT = [{"role": "user", "content": "é?"}, {"role": "assistant", "content": "sí\n"}]


@pytest.fixture(scope="module", params=["made", "reloaded"])
def tokenizer(request: pytest.FixtureRequest, target_folder: Path) -> PreTrainedTokenizerBase:
    return byte_tokenizer() if request.param == "made" else AutoTokenizer.from_pretrained(target_folder)


@settings(max_examples=100)
@given(text=st.text(st.characters(codec="utf-8")).filter(lambda text: not any(m in text for m in MARKERS)))
def test_a_texts_tokens_are_its_utf8_bytes(tokenizer: PreTrainedTokenizerBase, text: str):
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokens == list(text.encode())
    assert tokenizer.decode(tokens) == text


def test_every_byte_has_a_token(tokenizer: PreTrainedTokenizerBase):
    assert sorted(tokenizer.get_vocab().values()) == list(range(260))
    text = "".join(map(chr, range(0x800))) + "\u8000\U000fffff\U0010ffff"
    assert set(tokenizer(text)["input_ids"]) >= set(range(0xC0))


def test_the_markers_are_single_tokens_after_the_bytes(tokenizer: PreTrainedTokenizerBase):
    ids = [tokenizer.convert_tokens_to_ids(marker) for marker in MARKERS]
    assert sorted(ids) == [256, 257, 258, 259]
    assert tokenizer("".join(MARKERS))["input_ids"] == ids
    assert (tokenizer.eos_token, tokenizer.pad_token) == (END, PAD)
    assert tokenizer.decode(ids, skip_special_tokens=True) == ""


def test_no_text_can_say_the_mask(tokenizer: PreTrainedTokenizerBase):
    assert max(tokenizer.get_vocab().values()) < MASK_ID < VOCABULARY


def test_a_chat_is_rendered_with_its_markers(tokenizer: PreTrainedTokenizerBase):
    assert tokenizer.apply_chat_template(CHAT, tokenize=False) == f"{USER}é?{ASSISTANT}sí\n{END}"
    asked = tokenizer.apply_chat_template(CHAT[:1], tokenize=False, add_generation_prompt=True)
    assert asked == f"{USER}é?{ASSISTANT}"


def test_the_assistants_words_and_its_end_are_marked(tokenizer: PreTrainedTokenizerBase):
    found = tokenizer.apply_chat_template(CHAT, return_dict=True, return_assistant_tokens_mask=True)
    marked = [token for token, own in zip(found["input_ids"], found["assistant_masks"], strict=True) if own]
    assert marked == [*"sí\n".encode(), tokenizer.eos_token_id]
