"""The client of OpenAI-compatible servers, against a real one on loopback that fails in every way one can."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from dflash.errors import DataError
from dflash.training.serving import Answer, Server, Stopped, Unanswered
from tests.training.speaking import Fault, Speaking, break_off, choice, drop, sleep, status

QUESTION = [{"role": "user", "content": "é?"}]


pytestmark = pytest.mark.usefixtures("no_long_waits")


def client(there: Speaking, **changes: Any) -> Server:
    return Server(there.url, **{"patience_s": 5.0, "timeout_s": 5.0} | changes)


def ask(server: Server, **more: Any) -> Answer:
    return server.chat(QUESTION, tokens=9, temperature=0.5, seed=3, **more)


def test_a_question_is_asked_as_the_protocol_says(there: Speaking):
    answer = ask(client(there, key="secret"), chat_template_kwargs={"enable_thinking": False})
    assert answer == Answer("you said 'é?' at 0.5", "", True)
    assert there.keys == ["Bearer secret"]
    assert there.requests == [
        {
            "model": "tiny",
            "messages": QUESTION,
            "max_tokens": 9,
            "temperature": 0.5,
            "seed": 3,
            "chat_template_kwargs": {"enable_thinking": False},
        }
    ]


def test_a_named_model_is_asked_without_listing_any(there: Speaking):
    ask(client(there, model="mine"))
    assert there.requests[0]["model"] == "mine"
    assert there.keys == [None]


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (choice("a", "length"), Answer("a", "", False)),
        (choice("a", reasoning_content="hm"), Answer("a", "hm", True)),
        (choice("a", reasoning="hm"), Answer("a", "hm", True)),
        (choice(None, "length", reasoning_content="hm"), Answer("", "hm", False)),
        (choice("a", reasoning_content=None), Answer("a", "", True)),
    ],
)
def test_what_was_said_and_thought_and_how_it_ended_is_told(there: Speaking, reply: Any, answer: Answer):
    there.answer = lambda request: reply
    assert ask(client(there)) == answer


PASSING = [
    pytest.param(status(500), "HTTP 500: no room", id="500"),
    pytest.param(status(502, "<html>bad gateway"), "HTTP 502: <html>bad gateway", id="502"),
    pytest.param(status(429), "HTTP 429: no room", id="429"),
    pytest.param(drop, "", id="dropped"),
    pytest.param(break_off, "IncompleteRead", id="broken off"),
    pytest.param(status(200, "{oops"), "a reply that is none: b'{oops'", id="no JSON"),
    pytest.param(status(200, '{"choices": []}'), "a reply that is none", id="no choice"),
    pytest.param(status(200, '{"choices": [{"finish_reason": "stop", "message": {"content": 7}}]}'), "", id="no text"),
    pytest.param(status(200, "null"), "a reply that is none", id="null"),
    pytest.param(sleep(0.3), "timed out", id="silent"),
]


@pytest.mark.parametrize(("fault", "said"), PASSING)
def test_what_may_pass_is_tried_again_until_it_has(there: Speaking, fault: Fault, said: str):
    there.faults = [fault, fault]
    assert ask(client(there, timeout_s=0.1)).ended
    assert len(there.requests) == 3


@pytest.mark.parametrize(("fault", "said"), PASSING)
def test_what_does_not_pass_is_named_when_patience_ends(there: Speaking, fault: Fault, said: str):
    there.faults = [fault] * 1000
    with pytest.raises(
        DataError, match=rf"^{there.url}: no answer in \d+ attempts \(.*{said}.*\); see that the server"
    ):
        ask(client(there, timeout_s=0.1, patience_s=0.02))
    there.faults.clear()


def test_waits_grow_and_end_with_patience(there: Speaking):
    there.faults = [status(500)] * 1000
    begun = time.monotonic()
    with pytest.raises(DataError):
        ask(client(there, patience_s=0.3))
    assert time.monotonic() - begun < 2
    assert 4 <= len(there.requests) <= 12
    there.faults.clear()


def test_a_server_that_asks_to_be_left_alone_is(there: Speaking):
    there.faults = [status(429, Retry_After="1")]
    begun = time.monotonic()
    assert ask(client(there)).ended
    assert time.monotonic() - begun >= 1


@pytest.mark.parametrize("code", [400, 413, 422])
def test_a_prompt_that_is_refused_is_not_asked_again(there: Speaking, code: int):
    there.faults = [status(code, '{"message": "too long: 9000 tokens"}')]
    with pytest.raises(Unanswered, match=f"^HTTP {code}: too long: 9000 tokens$") as caught:
        ask(client(there))
    assert caught.value.kind == f"refused by the server with HTTP {code}"
    assert len(there.requests) == 1


def test_an_answer_that_the_server_broke_off_for_a_reason_of_its_own_is_none(there: Speaking):
    there.answer = lambda request: choice("no", "content_filter")
    with pytest.raises(Unanswered, match="ended by 'content_filter'"):
        ask(client(there))


@pytest.mark.parametrize("code", [401, 403, 404, 301])
def test_a_server_that_refuses_everything_is_named_at_once(there: Speaking, code: int):
    there.faults = [status(code, '{"error": "no such thing"}')]
    with pytest.raises(DataError, match=rf"^{there.url}: the server refuses \(HTTP {code}: no such thing\); see that"):
        ask(client(there))
    assert len(there.requests) == 1


def test_a_server_that_is_not_there_is_not_waited_for():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    begun = time.monotonic()
    with pytest.raises(DataError, match=rf"^{url}: its models can not be listed \(.*refused\); see that the server"):
        Server(url, patience_s=600)
    assert time.monotonic() - begun < 5


def test_closing_ends_requests_that_are_under_way_and_those_that_wait(there: Speaking):
    release = threading.Event()
    there.faults = [lambda handler: release.wait(10) and None, status(500, Retry_After="9")]
    server = client(there, patience_s=60)
    ended = []

    def asking() -> None:
        with pytest.raises(Stopped):
            ask(server)
        ended.append(True)

    threads = [threading.Thread(target=asking) for _ in range(2)]
    for thread in threads:
        thread.start()
    while len(there.requests) < 2:
        time.sleep(0.005)
    time.sleep(0.05)
    server.close()
    for thread in threads:
        thread.join(5)
    release.set()
    assert ended == [True, True]
    with pytest.raises(Stopped):
        ask(server)
