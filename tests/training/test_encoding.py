"""Which tokens a drafter is trained on, token for token."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from dflash.errors import DataError, UsageError
from dflash.model.bytelevel import ASSISTANT, END, PAD, USER, byte_tokenizer
from dflash.training.encoding import Encoded, Encoder, dropped, keep
from dflash.training.records import Message, Record

USER_ID, ASSISTANT_ID, END_ID = byte_tokenizer().convert_tokens_to_ids([USER, ASSISTANT, END])
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}{% if loop.last %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
    "{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As Qwen3's: no generation marks, an empty thought before the last answer, white space after a turn's end."""


def encoder(max_length: int = 1000, template: str | None = "the tokenizer's own") -> Encoder:
    tokenizer = byte_tokenizer()
    if template != "the tokenizer's own":
        tokenizer.chat_template = template
    return Encoder(tokenizer, max_length)


def chat(*contents: str) -> Record:
    """Turns of user and assistant, by turns."""
    turns: list[Message] = [
        {"role": ("user", "assistant")[index % 2], "content": content} for index, content in enumerate(contents)
    ]
    return Record("a", "data.jsonl:1", conversation=tuple(turns))


def text(content: str) -> Record:
    return Record("a", "data.jsonl:1", text=content)


def test_the_assistants_words_and_its_end_are_trained_in_every_turn():
    document = encoder()(chat("é?", "sí€", "x", "y"))
    tokens = [USER_ID, *"é?".encode(), ASSISTANT_ID, *"sí€".encode(), END_ID]
    mask = [False] * 5 + [True] * 7
    tokens += [USER_ID, *b"x", ASSISTANT_ID, *b"y", END_ID]
    mask += [False] * 3 + [True] * 2
    assert document.tokens.tolist() == tokens
    assert document.trainable.tolist() == mask
    assert (document.tokens.dtype, document.trainable.dtype) == (torch.int32, torch.bool)


def test_a_text_in_the_templates_form_is_read_as_the_conversation_is():
    same = chat("é?", "sí€", "x", "y")
    rendered = byte_tokenizer().apply_chat_template(list(same.conversation), tokenize=False)
    by_turns, by_text = encoder()(same), encoder()(text(rendered))
    assert torch.equal(by_turns.tokens, by_text.tokens)
    assert torch.equal(by_turns.trainable, by_text.trainable)


@settings(max_examples=50)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=6), min_size=1, max_size=5))
def test_so_it_is_for_every_conversation(contents: list[str]):
    same = chat(*contents)
    by_turns = encoder()(same)
    if any(marker in content for content in contents for marker in (USER, ASSISTANT, END, PAD)):
        return
    answers = [content.encode() for content in contents[1::2]]
    assert int(by_turns.trainable.sum()) == sum(len(answer) + 1 for answer in answers)
    picked = by_turns.tokens[by_turns.trainable].tolist()
    assert picked == [token for answer in answers for token in [*answer, END_ID]]
    if answers:
        by_text = encoder()(text(byte_tokenizer().apply_chat_template(list(same.conversation), tokenize=False)))
        assert torch.equal(by_turns.tokens, by_text.tokens)
        assert torch.equal(by_turns.trainable, by_text.trainable)


def test_an_answer_that_a_text_breaks_off_is_trained_and_its_prompt_is_not():
    document = encoder()(text(f"{USER}abc{ASSISTANT}defgh"))
    assert document.trainable.tolist() == [False] * 5 + [True] * 5


def test_another_text_is_trained_throughout():
    document = encoder()(text("naïve"))
    assert document.tokens.tolist() == list("naïve".encode())
    assert document.trainable.all()


def test_a_text_with_a_thought_is_trained_from_where_the_assistant_begins_to_where_it_ends():
    said = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\na<|im_end|>\n"
    found = encoder(template=CHATML)(text(said))
    picked = bytes(found.tokens[found.trainable].tolist()).decode()
    assert picked == "<think>\nhm\n</think>\n\na<|im_end|>"


def test_without_a_template_a_text_is_trained_throughout():
    assert encoder(template=None)(text(f"a{ASSISTANT}b")).trainable.all()


@pytest.mark.parametrize("template", [None, CHATML, CHATML.replace("<|im_start|>", "generation")])
def test_a_template_without_generation_marks_is_refused_with_the_cure(template: str | None):
    """Most templates say `add_generation_prompt`, which is no mark."""
    with pytest.raises(DataError) as caught:
        encoder(template=template)(chat("a", "b"))
    assert str(caught.value).startswith("data.jsonl:1: the target's chat template has no {% generation %} marks")
    assert "put {% generation %}…{% endgeneration %} round the assistant's content" in str(caught.value)


@pytest.mark.parametrize("mark", ["{% generation %}", "{%- generation -%}", "{%generation%}"])
def test_every_spelling_of_the_marks_will_do(mark: str):
    template = (
        "{% for m in messages %}[{% if m['role'] == 'assistant' %}"
        + mark
        + "{{ m['content'] }}{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}]{% endfor %}"
    )
    found = encoder(template=template)(chat("ab", "cdé"))
    assert bytes(found.tokens[found.trainable].tolist()).decode() == "cdé"


def test_records_encoded_together_are_as_if_each_were_alone():
    records = [chat("é?", "sí€"), text("naïve"), chat("a", "b" * 50, "c", "d"), text(f"{USER}q{ASSISTANT}a"), text("")]
    encode = encoder(max_length=20)
    for one, other in zip(encode.encode(records), map(encode, records), strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert torch.equal(one.trainable, other.trainable)
        assert one.lost == other.lost
    assert [each.lost for each in encode.encode(records)] == [0, 0, 39, 0, 0]
    assert encode.encode([]) == []


def test_a_bad_conversation_among_good_ones_is_the_one_that_is_named():
    template = (
        "{% if messages[0].content == 'x' %}{{ raise_exception('no') }}{% endif %}{% generation %}a{% endgeneration %}"
    )
    records = [
        Record(str(n), f"data.jsonl:{n}", ({"role": "user", "content": "x" if n == 3 else "y"},)) for n in range(5)
    ]
    with pytest.raises(DataError, match=r"^data.jsonl:3: the chat template refused it"):
        encoder(template=template).encode(records)


def test_the_mask_token_in_the_data_is_named_with_its_place():
    """The drafter could not tell its blanks from words."""
    mask = byte_tokenizer().convert_tokens_to_ids(USER)
    encode = Encoder(byte_tokenizer(), 8, mask=mask)
    records = [text("fine"), Record("b", "data.jsonl:7", text=f"a{USER}b"), text("fine")]
    with pytest.raises(
        DataError, match=rf"^data.jsonl:7: the mask token {mask} \('<\|user\|>'\) is in it; name a vocab"
    ):
        encode.encode(records)
    assert encode(text(f"cut before it{USER}")).lost == 6


OPTIONS = "{% if enable_thinking and style == 'mild' %}{# loudness #}{% endif %}{% generation %}{% endgeneration %}"


@pytest.mark.parametrize(
    ("name", "cure"),
    [("enable_thinkin", "did you mean 'enable_thinking'?"), ("loudness", "remove it"), ("zzz", "remove it")],
)
def test_a_template_option_that_the_template_does_not_use_is_refused(name: str, cure: str):
    """transformers passes over it in silence, and so does the template."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = OPTIONS
    with pytest.raises(UsageError) as caught:
        Encoder(tokenizer, 8, options={"style": "mild", name: True})
    said = f"data.template_options: the target's chat template does not use '{name}'; {cure}"
    assert str(caught.value) == said


def test_template_options_reach_the_template():
    template = CHATML.replace("{{ m['content'] }}", "{% generation %}{{ m['content'] }}{{ tail }}{% endgeneration %}")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    found = Encoder(tokenizer, 1000, options={"tail": "!?"})(chat("a"))
    assert bytes(found.tokens.tolist()).decode() == "<|im_start|>user\na!?<|im_end|>\n"


def test_a_thought_that_the_template_leaves_out_is_refused():
    said: Message = {"role": "assistant", "content": "a", "reasoning_content": "hm"}
    record = Record("a", "data.jsonl:1", conversation=({"role": "user", "content": "q"}, said))
    with pytest.raises(
        DataError, match=r"^data.jsonl:1: it has reasoning_content, which the target's chat template lea"
    ):
        encoder()(record)
    template = byte_tokenizer().chat_template.replace(
        "{% generation %}", "{% generation %}{{ message.reasoning_content }}|"
    )
    found = encoder(template=template)(record)
    assert bytes(found.tokens[found.trainable].tolist()[:-1]).decode() == "hm|a"


def test_a_conversation_that_the_template_refuses_is_named():
    template = (
        "{{ raise_exception('roles must alternate') if messages | length > 2 }}{% generation %}{% endgeneration %}"
    )
    with pytest.raises(DataError, match=r"^data.jsonl:1: the chat template refused it .*roles must alternate"):
        encoder(template=template)(chat("a", "b", "c"))


def test_a_template_that_is_broken_is_named_at_once():
    with pytest.raises(DataError, match="the chat template can not render a question and its answer"):
        encoder(template="{% for %}")


def test_long_documents_are_cut_with_their_mask():
    full, cut = encoder()(chat("abc", "defgh")), encoder(max_length=8)(chat("abc", "defgh"))
    assert torch.equal(cut.tokens, full.tokens[:8])
    assert torch.equal(cut.trainable, full.trainable[:8])
    assert encoder(max_length=len(full.tokens))(chat("abc", "defgh")).tokens.shape == full.tokens.shape


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        ([1, 1, 1], "shorter than a block"),
        ([0, 0, 0, 0, 0], "no trainable token"),
        ([1, 1, 1, 0, 0], "fewer trainable tokens than a block"),
        ([1, 1, 1, 1], None),
    ],
)
def test_what_gives_no_whole_block_is_dropped_and_said_why(mask: list[int], reason: str | None):
    document = Encoded(torch.arange(len(mask)), torch.tensor(mask).bool())
    assert dropped(document, 4) == reason


def test_every_record_is_accounted_for():
    records = [text("long enough"), text("no"), chat("only a question, of some length")]
    found = list(keep(records, encoder(), 4))
    assert [record for record, _, _ in found] == records
    assert [reason for _, _, reason in found] == [None, "shorter than a block", "no trainable token"]
    assert [document is not None for _, document, _ in found] == [True, False, False]


def test_a_tokenizer_is_not_changed_by_an_encoder():
    tokenizer: PreTrainedTokenizerFast = byte_tokenizer()
    before = tokenizer.chat_template
    Encoder(tokenizer, 8)
    assert tokenizer.chat_template == before
