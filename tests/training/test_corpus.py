"""The text that every machine has, and the prompts cut from it."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from dflash.errors import DataError
from dflash.training.corpus import SPLITS, Document, digest, split, split_of, standard_library
from dflash.training.responses import cut_prompts

SIZE = 600_000
STDLIB = Path(sysconfig.get_paths()["stdlib"])


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return standard_library(SIZE)


def test_it_is_the_interpreters_own_sources_in_one_order(documents: list[Document]):
    assert standard_library(SIZE) == documents
    assert len(documents) > 10
    for document in documents:
        assert document.text == (STDLIB / document.name).read_text(encoding="ascii")
    plain = [document.name for document in documents if "/" not in document.name]
    assert plain == sorted(plain)


def test_it_holds_no_more_than_asked_for(documents: list[Document]):
    assert SIZE * 0.7 < sum(len(document.text) for document in documents) <= SIZE
    assert standard_library(SIZE // 2) == documents[: len(standard_library(SIZE // 2))]


def test_no_tests_and_no_installed_packages_are_in_it():
    folders = {Path(document.name).parts[0] for document in standard_library(50_000_000)}
    assert {"json", "email"} < folders
    assert not folders & {"test", "site-packages", "__pycache__", "idlelib", "lib2to3"}


def test_less_than_one_module_is_refused():
    with pytest.raises(DataError, match=r"source of at most 100 bytes was found; raise corpus_bytes, or install"):
        standard_library(100)


def test_the_splits_share_nothing_and_leave_nothing_out():
    everything = standard_library(50_000_000)
    parts = {name: split(everything, name) for name in SPLITS}
    assert sorted(d.name for part in parts.values() for d in part) == sorted(d.name for d in everything)
    shares = {name: len(part) / len(everything) for name, part in parts.items()}
    assert 0.7 < shares["target"] < 0.9
    assert 0.04 < shares["prompts"] < 0.2
    assert 0.04 < shares["heldout"] < 0.2


def test_a_documents_split_is_that_of_its_name_alone():
    assert [split_of(name) for name in ("abc.py", "json/__init__.py", "json/decoder.py")] == list(SPLITS)


def test_the_digest_tells_names_texts_and_where_one_ends(documents: list[Document]):
    one = [Document("a", "xy"), Document("b", "z")]
    others = [
        [Document("a", "xy"), Document("b", "Z")],
        [Document("a", "x"), Document("b", "yz")],
        [Document("ax", "y"), Document("b", "z")],
        [Document("a", "xy"), Document("c", "z")],
        [Document("b", "z"), Document("a", "xy")],
        [Document("a", "xy")],
    ]
    assert digest(one) == digest(list(one))
    assert digest(one) not in {digest(other) for other in others}
    assert digest(documents) == digest(standard_library(SIZE))


def test_prompts_are_pieces_of_the_documents_that_their_ids_name(documents: list[Document]):
    texts = {document.name: document.text for document in documents}
    prompts = cut_prompts(documents, 50, (20, 40), seed=3)
    assert prompts == cut_prompts(documents, 50, (20, 40), seed=3)
    assert prompts != cut_prompts(documents, 50, (20, 40), seed=4)
    for identity, prompt in prompts:
        name, _, place = identity.rpartition("@")
        start, length = map(int, place.split("+"))
        assert prompt == texts[name][start : start + length]
        assert 20 <= len(prompt) <= 40
    assert len({identity.partition("@")[0] for identity, _ in prompts}) > 5


def test_documents_too_short_for_a_prompt_are_refused():
    with pytest.raises(DataError, match="no prompt of 40 characters can be cut from 1 documents; raise corpus_bytes"):
        cut_prompts([Document("a", "x" * 80)], 1, (20, 40), seed=0)
