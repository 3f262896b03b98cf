"""Secrets are replaced wherever they show, and a stream of them is neither held up nor cut."""

from __future__ import annotations

import base64
import json
import os
import random
import threading
from urllib.parse import quote, quote_plus

import pytest

from dflash.errors import UsageError
from dflash.pipeline.redaction import MASK, Redaction, secrets_of
from dflash.pipeline.schema import Step
from tests.pipeline.sample_kinds import KINDS, WorkConfig

SECRET = 'p&ss "wörd"/+\\x'


def step(*names: str) -> Step:
    return Step("push", KINDS["work"], (), WorkConfig(), {}, None, secrets=names)


def streamed(redaction: Redaction, *pieces: bytes) -> list[bytes]:
    """What comes out of a pipe that gets these pieces one by one."""
    read, write = os.pipe()
    found = []
    try:
        stream = redaction.stream(read)
        thread = threading.Thread(target=lambda: found.extend(stream))
        thread.start()
        for piece in pieces:
            os.write(write, piece)
        os.close(write)
        thread.join()
    finally:
        os.close(read)
    return found


@pytest.mark.parametrize("secret", [SECRET, "hunter22", "-----BEGIN KEY-----\nMIIEowIBAAKCAQEA\n-----END KEY-----\n"])
def test_a_value_is_hidden_in_every_form_that_it_may_take(secret: str):
    raw = secret.encode()
    forms = [secret, quote(secret), quote(secret, safe=""), quote_plus(secret), repr(secret), json.dumps(secret)]
    forms += [json.dumps(secret, ensure_ascii=False), *secret.splitlines()]
    forms += [encode(raw).decode() for encode in (base64.b64encode, base64.urlsafe_b64encode)]
    redaction = Redaction([secret])
    for form in forms:
        said = redaction.value(f"before {form} after")
        assert said in (f"before {MASK} after", f'before "{MASK}" after', f"before '{MASK}' after"), form
        assert b"".join(streamed(redaction, f"before {form} after".encode())).decode() == said
    for before in ("", "a", "ab", "abc"):
        hidden = redaction.value(base64.b64encode(f"{before}{secret}:more".encode()).decode())
        assert MASK in hidden
        assert len(hidden.replace(MASK, "")) < 16


def test_values_of_a_result_are_hidden_at_any_depth_and_numbers_stay():
    redaction = Redaction(["hunter22"])
    found = redaction.value({"a": ["hunter22", {"hunter22": "x hunter22 y"}], "b": 1.5, "c": None, "d": True})
    assert found == {"a": [MASK, {MASK: f"x {MASK} y"}], "b": 1.5, "c": None, "d": True}
    assert Redaction().value("hunter22") == "hunter22"


def test_names_of_a_map_that_are_not_the_steps_own_stay():
    assert Redaction(["libraries"]).value({"libraries": ["libraries"]}, names=False) == {"libraries": [MASK]}


def test_a_secret_that_is_no_utf_8_is_hidden_too():
    raw = b"abc\xffdefgh"
    redaction = Redaction([os.fsdecode(raw)])
    assert b"".join(streamed(redaction, b"it is " + raw + b" abc%FFdefgh")) == b"it is *** ***"


def test_what_can_be_no_secret_is_passed_on_at_once_and_a_beginning_is_held():
    redaction = Redaction(["hunter22"])
    assert redaction._split(b"a line\n") == (b"a line\n", b"")
    assert redaction._split(b"a hun") == (b"a ", b"hun")
    assert redaction._split(b"hunter22 b") == (f"{MASK} b".encode(), b"")
    assert streamed(redaction, b"a hun", b"ter2", b"2 b, and at the end hunter2")[-1].endswith(b"hunter2")


@pytest.mark.parametrize("secrets", [("abcab", "abcabd"), ("abcd", "abcdef", "def!"), ("aaaa", "aaaab")])
def test_cut_anywhere_a_stream_is_redacted_as_if_it_came_whole(secrets: tuple[str, ...]):
    redaction, chance = Redaction(secrets), random.Random(8)
    for _ in range(200):
        text = "".join(chance.choice([*secrets, *"abcdef! "]) for _ in range(12)).encode()
        done, rest = b"", text[:0]
        place = 0
        while place < len(text):
            size = chance.randint(1, 5)
            said, rest = redaction._split(rest + text[place : place + size])
            done, place = done + said, place + size
        assert redaction._bytes is not None
        assert done + redaction._bytes.sub(MASK.encode(), rest) == redaction._bytes.sub(MASK.encode(), text)


def test_a_secret_that_is_not_set_or_too_short_is_named():
    assert secrets_of([step("TOKEN"), step()], {"TOKEN": "hunter22", "OTHER": "x"}) == {"TOKEN": "hunter22"}
    for environ in ({}, {"TOKEN": ""}):
        with pytest.raises(UsageError, match="step push: the secret TOKEN is not set; set it for this command: export"):
            secrets_of([step("TOKEN")], environ)
    with pytest.raises(UsageError, match="the secret TOKEN has fewer than 4 characters"):
        secrets_of([step("TOKEN")], {"TOKEN": "abc"})
