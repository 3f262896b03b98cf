"""Conversations answered anew by a server: in order, whole, and never twice."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dflash.errors import DataError
from dflash.model.bytelevel import byte_tokenizer
from dflash.progress import Silent
from dflash.training.answering import Answering, Asking
from dflash.training.encoding import Encoder
from dflash.training.records import Record, parse
from dflash.training.serving import Server
from tests.training.speaking import Speaking, break_off, choice, drop, status

THINKING = (
    "{% for m in messages %}<{{ m['role'] }}>"
    "{% if m['role'] == 'assistant' %}{% generation %}"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m['content'] }}<|end|>{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""A template that shows thoughts."""


pytestmark = pytest.mark.usefixtures("no_long_waits")


def question(number: int) -> Record:
    return Record(f"q{number}", f"x:{number}", ({"role": "user", "content": f"question {number}"},))


def answering(there: Speaking, folder: Path, template: str | None = None, **changes: Any) -> Answering:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template or tokenizer.chat_template
    asking = Asking(**{"tokens": 20, "temperature": 0.8, "sampled": 0.0, "seed": 7, "options": {}} | changes)
    server = Server(there.url, patience_s=2.0)
    return Answering(server, Encoder(tokenizer, 100).render, asking, folder, concurrency=4, batch=3)


def answers(there: Speaking, folder: Path, records: Sequence[Record], **changes: Any) -> list[dict[str, Any]]:
    return list(answering(there, folder, **changes).answers(records, len(records), Silent()))


def roles(document: Mapping[str, Any]) -> list[str]:
    return [f"{turn['role']}: {turn['content']}" for turn in document["conversations"]]


def test_answers_come_in_the_order_of_the_questions_whatever_order_they_are_given_in(there: Speaking, tmp_path: Path):
    def slow_at_first(request: dict[str, Any]) -> dict[str, Any]:
        said = request["messages"][-1]["content"]
        time.sleep(0.05 if int(said.split()[-1]) % 3 == 0 else 0)
        return choice(f"to {said}")

    there.answer = slow_at_first
    found = answers(there, tmp_path, [question(number) for number in range(20)])
    assert [roles(each) for each in found] == [
        [f"user: question {number}", f"assistant: to question {number}"] for number in range(20)
    ]
    assert [each["id"] for each in found] == [f"q{number}:greedy" for number in range(20)]
    assert 2 <= there.most_at_once <= 4


def test_faults_that_pass_change_no_answer(there: Speaking, tmp_path: Path):
    records = [question(number) for number in range(12)]
    whole = answers(there, tmp_path / "whole", records)
    there.faults = [status(500), drop, status(429), break_off, status(200, "{oops")] * 3
    assert answers(there, tmp_path / "faults", records) == whole


def test_the_share_sampled_is_spread_over_the_records_each_with_a_seed_of_its_own(there: Speaking, tmp_path: Path):
    found = answers(there, tmp_path, [question(number) for number in range(8)], sampled=0.25)
    assert [each["id"].partition(":")[2] for each in found] == ["greedy", "greedy", "greedy", "t0.8"] * 2
    heat = {each["seed"]: each["temperature"] for each in there.requests}
    assert heat == {7 + number: 0.8 if number in (3, 7) else 0.0 for number in range(8)}


def test_a_later_question_is_asked_with_the_targets_own_earlier_answer(there: Speaking, tmp_path: Path):
    turns = [("system", "s"), ("user", "a"), ("assistant", "theirs"), ("user", "b"), ("assistant", "theirs")]
    record = Record("r", "x:1", tuple({"role": role, "content": said} for role, said in turns))
    there.answer = lambda request: choice(f"mine {len(request['messages'])}", reasoning_content="hm")
    (found,) = answers(there, tmp_path, [record], template=THINKING)
    assert roles(found) == ["system: s", "user: a", "assistant: mine 2", "user: b", "assistant: mine 4"]
    assert [turn.get("reasoning_content") for turn in found["conversations"]] == [None, None, "hm", None, "hm"]
    assert there.requests[1]["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "mine 2"},
        {"role": "user", "content": "b"},
    ]


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (choice("so fa", "length"), "<user>question 0<assistant>so fa"),
        (choice("so fa", "length", reasoning_content="hm"), "<user>question 0<assistant><think>hm</think>so fa"),
        (choice(None, "length", reasoning_content="hm, le"), "<user>question 0<assistant><think>hm, le"),
        (choice("", "length"), "<user>question 0<assistant>"),
    ],
)
def test_an_answer_that_was_cut_off_is_a_text_that_ends_where_it_does(
    there: Speaking, tmp_path: Path, reply: dict[str, Any], text: str
):
    there.answer = lambda request: reply
    assert answers(there, tmp_path, [question(0)], template=THINKING) == [{"id": "q0:greedy", "text": text}]


@pytest.mark.parametrize("content", ["so fa", None])
def test_a_thought_that_the_template_can_not_show_is_refused(there: Speaking, tmp_path: Path, content: str | None):
    there.answer = lambda request: choice(content, "length", reasoning_content="hm")
    with pytest.raises(DataError, match="chat template leaves reasoning_content out; serve the model without a reason"):
        answers(there, tmp_path, [question(0)])


def test_template_options_are_the_servers_too(there: Speaking, tmp_path: Path):
    answers(there, tmp_path, [question(0)], options={"enable_thinking": False})
    assert there.requests[0]["chat_template_kwargs"] == {"enable_thinking": False}


def test_what_has_no_answer_is_left_out_and_counted(there: Speaking, tmp_path: Path):
    def picky(request: dict[str, Any]) -> dict[str, Any]:
        return choice("no", "content_filter") if "question 2" in request["messages"][-1]["content"] else choice("yes")

    there.answer = picky
    greeting = Record("g", "x:9", ({"role": "assistant", "content": "hello"},))
    records = [question(0), Record("t", "x:8", text="a text"), question(2), greeting, question(4)]
    for _ in range(2):  # the second time, from what the first kept
        made = answering(there, tmp_path)
        assert [each["id"] for each in made.answers(records, 5, Silent())] == ["q0:greedy", "q4:greedy"]
        assert made.unanswered == {"no prompt": 2, "ended by 'content_filter'": 1}
    assert len(there.requests) == 3


def test_more_may_be_asked_of_a_server_that_has_answered_even_what_it_then_refuses(there: Speaking, tmp_path: Path):
    made = answering(there, tmp_path)
    assert len(list(made.answers([question(0)], 1, Silent()))) == 1
    there.faults = [status(400)]
    assert list(made.answers([question(1)], 1, Silent())) == []
    assert made.unanswered == {"refused by the server with HTTP 400": 1}


def test_a_server_that_refuses_all_of_the_first_is_not_asked_for_the_rest(there: Speaking, tmp_path: Path):
    there.faults = [status(400)] * 1000
    with pytest.raises(DataError, match=rf"^{there.url}: the server refused the first 3 prompts \(HTTP 400: no room\)"):
        answers(there, tmp_path, [question(number) for number in range(500)])
    assert len(there.requests) < 50


def test_a_server_that_dies_is_named_and_what_it_answered_is_kept(there: Speaking, tmp_path: Path):
    records = [question(number) for number in range(30)]
    whole = answers(there, tmp_path / "whole", records)

    def dying(request: dict[str, Any]) -> dict[str, Any]:
        if len(there.requests) > 45:
            raise ConnectionAbortedError
        return choice(f"you said {request['messages'][-1]['content']!r} at 0")

    there.answer = dying
    made = answering(there, tmp_path / "cut")
    made._server._patience_s = 0.05
    with pytest.raises(DataError, match="no answer in"):
        list(made.answers(records, 30, Silent()))
    kept = len(list((tmp_path / "cut").iterdir()))
    assert 1 <= kept < 10
    there.answer = lambda request: choice(f"you said {request['messages'][-1]['content']!r} at 0")
    before = len(there.requests)
    assert answers(there, tmp_path / "cut", records) == whole
    # Each once; the server may still come to read a request whose asker has given up.
    asked = {request["messages"][-1]["content"] for request in there.requests[before:]}
    assert len(asked) == 30 - 3 * kept


def test_an_interrupted_run_goes_on_and_leaves_no_thread(there: Speaking, tmp_path: Path):
    records = [question(number) for number in range(30)]
    whole = answers(there, tmp_path / "whole", records)
    begun = time.monotonic()
    stream = answering(there, tmp_path / "cut").answers(records, 30, Silent())
    assert [next(stream) for _ in range(7)] == whole[:7]
    stream.close()
    assert time.monotonic() - begun < 5
    there.requests.clear()
    assert answers(there, tmp_path / "cut", records) == whole
    asked = {request["messages"][-1]["content"] for request in there.requests}
    assert asked.isdisjoint(f"question {number}" for number in range(9))


@pytest.mark.parametrize("changes", [{"temperature": 0.5}, {"tokens": 21}, {"seed": 8}, {"options": {"a": 1}}])
def test_answers_to_something_else_are_not_taken(there: Speaking, tmp_path: Path, changes: dict[str, Any]):
    answers(there, tmp_path, [question(0)], sampled=1.0)
    answers(there, tmp_path, [question(0)], sampled=1.0)
    assert len(there.requests) == 1
    answers(there, tmp_path, [question(0)], **{"sampled": 1.0, **changes})
    answers(there, tmp_path, [question(1)], sampled=1.0)
    assert len(there.requests) == 3


def test_an_answer_may_hold_any_character(there: Speaking, tmp_path: Path):
    said = "a\u2028b\x85c\r\nd\x00e😀"
    there.answer = lambda request: choice(said)
    (found,) = answers(there, tmp_path, [question(0)])
    assert parse(json.dumps(found).encode(), "here").conversation[1]["content"] == said


def test_records_are_read_no_further_than_they_are_asked(there: Speaking, tmp_path: Path):
    seen = []

    def many() -> Iterator[Record]:
        for number in range(100):
            seen.append(number)
            yield question(number)

    for number, _ in enumerate(answering(there, tmp_path).answers(many(), 100, Silent())):
        assert len(seen) <= number + 3 + 2 * 4 + 2 * 3
