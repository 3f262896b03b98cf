"""The data step: from a user's file or the target's own answers to packed rows, and an account of what was dropped."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash.errors import DataError, StorageError, UsageError
from dflash.model.bytelevel import ASSISTANT, USER, byte_tokenizer
from dflash.progress import Silent
from dflash.training.dataconfig import DataConfig
from dflash.training.dataset import Withholding, build_dataset, read_tokenizer
from dflash.training.packing import Rows, load_rows
from dflash.training.records import Record, as_json, read_records
from tests.training.speaking import choice, speaking

SMALL: dict[str, Any] = {"buckets": (32, 64), "block": 4, "heldout": 3, "corpus_bytes": 600_000}


def turns(*contents: str, first: str = "user") -> list[dict[str, str]]:
    roles = ["user", "assistant"] if first == "user" else ["assistant", "user"]
    return [{"role": roles[index % 2], "content": content} for index, content in enumerate(contents)]


def file_of(folder: Path, *documents: dict[str, Any]) -> str:
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps(document, ensure_ascii=False) + "\n" for document in documents))
    return str(path)


def build(target: Path, out: Path, **changes: Any) -> dict[str, Any]:
    out.mkdir(exist_ok=True)
    return build_dataset(DataConfig(**SMALL | changes), target, out, Silent())


def documents_in(rows: dict[int, Rows]) -> Iterator[tuple[bytes, bytes]]:
    """Each packed document's bytes, markers as \\xff, and those that are trained."""
    for part in rows.values():
        for row in range(len(part)):
            for number in range(int(part.documents[row].max()) + 1):
                own = part.documents[row] == number
                tokens, trained = part.tokens[row, own].clamp(max=255), part.trainable[row, own]
                yield bytes(tokens.tolist()), bytes(tokens[trained].tolist())


def test_both_record_forms_are_packed_with_what_is_trained_of_them(target_folder: Path, tmp_path: Path):
    file = file_of(
        tmp_path,
        {"id": "a", "conversations": turns("wie?", "größer", "so?", "ja, so")},
        {"id": "b", "text": "plain text €"},
        {"id": "c", "text": "<|user|>why<|assistant|>because<|end|>"},
        {"id": "d", "text": "x" * 100},
        {"id": "e", "text": "no"},
        {"id": "f", "conversations": turns("a question without an answer")},
        {"id": "g", "conversations": turns("a question", "ok")},
    )
    report = build(target_folder, tmp_path / "out", file=file)
    found = sorted(documents_in(load_rows(tmp_path / "out" / "rows.safetensors")))
    assert found == sorted(
        [
            ("\xffwie?\xff".encode("latin-1") + "größer".encode() + b"\xff\xffso?\xffja, so\xff",
             "größer".encode() + b"\xffja, so\xff"),
            ("plain text €".encode(), "plain text €".encode()),
            (b"\xffwhy\xffbecause\xff", b"because\xff"),
            (b"x" * 64, b"x" * 64),
        ]
    )  # fmt: skip
    assert report["documents"] == 4
    assert report["tokens"] == sum(len(whole) for whole, _ in found)
    assert report["trainable_tokens"] == sum(len(trained) for _, trained in found)
    assert report["cut"] == {"documents": 1, "tokens": 36}
    assert report["dropped"] == {
        "fewer trainable tokens than a block": 1,
        "no trainable token": 1,
        "shorter than a block": 1,
    }
    assert report == json.loads((tmp_path / "out" / "report.json").read_text())


def test_a_files_last_conversations_are_held_out_as_prompts(target_folder: Path, tmp_path: Path):
    chats = [{"id": f"c{i}", "conversations": turns(f"question {i}", f"answer {i}")} for i in range(20)]
    texts = [{"id": f"t{i}", "text": f"some text {i}"} for i in range(4)]
    build(target_folder, tmp_path / "out", file=file_of(tmp_path, *chats, *texts), heldout=50)
    held = list(read_records(tmp_path / "out" / "heldout.jsonl"))
    assert [(record.id, record.conversation) for record in held] == [
        (f"c{i}", tuple(turns(f"question {i}"))) for i in (18, 19)
    ]
    trained = b" ".join(whole for whole, _ in documents_in(load_rows(tmp_path / "out" / "rows.safetensors")))
    assert b"answer 17" in trained
    assert b"some text 3" in trained
    assert b"answer 18" not in trained
    assert b"answer 19" not in trained


def test_conversations_that_are_held_out_are_packed_whole_to_measure_with(target_folder: Path, tmp_path: Path):
    chats = [{"id": f"c{i}", "conversations": turns(f"question {i}", f"answer {i}")} for i in range(29)]
    chats.append({"id": "c29", "conversations": turns("a question that has no answer")})
    report = build(target_folder, tmp_path / "out", file=file_of(tmp_path, *chats))
    held = load_rows(tmp_path / "out" / "heldout.safetensors")
    assert sorted(trained for _, trained in documents_in(held)) == [b"answer 27\xff", b"answer 28\xff"]
    assert report["held_out"] == 3
    assert report["held_out_rows"] == {str(bucket): len(part) for bucket, part in held.items()} == {"32": 2}


def test_texts_alone_give_no_rows_to_measure_with(target_folder: Path, tmp_path: Path):
    file = file_of(tmp_path, *({"text": f"some text {i}"} for i in range(30)))
    assert build(target_folder, tmp_path / "out", file=file)["held_out_rows"] == {}
    assert load_rows(tmp_path / "out" / "heldout.safetensors") == {}


def test_a_conversation_that_the_assistant_begins_gives_no_prompt():
    first = Record("a", "x:1", conversation=tuple(turns("hello", "hi", first="assistant")))
    others = [Record(str(i), f"x:{i}", conversation=tuple(turns("q", "a", "r"))) for i in range(10)]
    passing = Withholding([*others, first], 5)
    assert {record.id for record in passing} == {*"012345678", "a"}
    assert passing.prompts == [{"id": "9", "conversations": turns("q")}]


def test_records_are_held_back_no_more_than_are_held_out():
    seen = []

    def many() -> Iterator[Record]:
        for number in range(1000):
            seen.append(number)
            yield Record(str(number), f"x:{number}", conversation=tuple(turns("q", "a")))

    passing = Withholding(many(), 5)
    for number, record in enumerate(passing):
        assert record.id == str(number)
        assert len(seen) <= number + 6
    assert [prompt["id"] for prompt in passing.prompts] == ["995", "996", "997", "998", "999"]


@pytest.mark.parametrize("count", [1, 9])
def test_a_file_too_small_to_hold_out_of_is_all_trained_on(target_folder: Path, tmp_path: Path, count: int):
    chats = [{"id": f"c{i}", "conversations": turns(f"question {i}", f"answer {i}")} for i in range(count)]
    assert build(target_folder, tmp_path / "out", file=file_of(tmp_path, *chats))["documents"] == count
    held = list(read_records(tmp_path / "out" / "heldout.jsonl"))
    assert len(held) == 3
    assert all(24 <= len(message["content"]) <= 72 for record in held for message in record.conversation)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the data file is empty"),
        (b'{"text": "long enough"}\n{oops}\n', r"not JSON .*; write one JSON object on each line"),
        (b'{"text": "long enough"}\n{"text": "\xff"}\n', "byte 11 is not UTF-8"),
        (
            b'{"text": "abc"}\n{"conversations": [{"role": "user", "content": "only a question"}]}\n{"text": "d"}\n',
            r"no document is left to train on \(1 x no trainable token, 2 x shorter than a block\); "
            "give documents with at least 4 trainable tokens",
        ),
    ],
)
def test_a_file_that_gives_nothing_to_train_on_is_named(
    target_folder: Path, tmp_path: Path, content: bytes, reason: str
):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"^{path}(:2)?: {reason}"):
        build(target_folder, tmp_path / "out", file=str(path))
    assert not (tmp_path / "out" / "rows.safetensors").exists()


def test_a_file_that_is_not_there_is_named(target_folder: Path, tmp_path: Path):
    with pytest.raises(StorageError, match=rf"^{tmp_path}/none.jsonl: No such file"):
        build(target_folder, tmp_path / "out", file=str(tmp_path / "none.jsonl"))


def test_a_target_without_a_tokenizer_is_named(target_folder: Path, tmp_path: Path):
    """transformers would make up one that turns all text into nothing."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(target_folder / name, tmp_path)
    with pytest.raises(UsageError, match=rf"^{tmp_path}: there is no tokenizer; copy tokenizer.json"):
        read_tokenizer(tmp_path)


def test_a_template_without_marks_is_refused_before_anything_is_answered(target_folder: Path, tmp_path: Path):
    folder = tmp_path / "target"
    shutil.copytree(target_folder, folder)
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(
        template.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    )
    with pytest.raises(DataError, match=rf"^{folder}: the target's chat template has no {{% generation %}} marks"):
        build(folder, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


# --- answers by the target itself


def exchange(record: dict[str, Any]) -> tuple[str, str]:
    """Prompt and answer of a record in either form."""
    if "conversations" in record:
        asked, said = record["conversations"]
        assert (asked["role"], said["role"]) == ("user", "assistant")
        return asked["content"], said["content"]
    prompt, _, answer = record["text"].removeprefix(USER).partition(ASSISTANT)
    return prompt, answer


def test_the_data_step_answers_prompts_and_packs_them(target_folder: Path, tmp_path: Path):
    changes = {"prompts": 6, "batch": 3, "response_tokens": 20, "sampled": 0.5, "buckets": (128,)}
    report = build(target_folder, tmp_path / "out", **changes)
    records = list(read_records(tmp_path / "out" / "train.jsonl"))
    assert len(records) == 6
    assert [record.id.rpartition(":")[2] for record in records] == ["greedy"] * 3 + ["t0.8"] * 3
    assert report["documents"] + sum(report["dropped"].values()) == 6
    held = [record.conversation[0]["content"] for record in read_records(tmp_path / "out" / "heldout.jsonl")]
    assert len(held) == 3
    assert not set(held) & {exchange(as_json(record))[0] for record in records}
    measured = b" ".join(whole for whole, _ in documents_in(load_rows(tmp_path / "out" / "heldout.safetensors")))
    assert all(prompt.encode() in measured for prompt in held), "answered, and packed to measure with"
    packed = (tmp_path / "out" / "rows.safetensors").read_bytes()
    build(target_folder, tmp_path / "again", **changes)
    assert (tmp_path / "again" / "rows.safetensors").read_bytes() == packed


# --- answers by a server of the target


def test_a_files_questions_are_answered_by_a_server_and_its_own_answers_are_not_used(
    target_folder: Path, tmp_path: Path
):
    chats = [{"id": f"c{i}", "messages": turns(f"question {i}", f"theirs {i}")} for i in range(20)]
    file = file_of(tmp_path, *chats, {"id": "t", "text": "some plain text"})
    with speaking(lambda request: choice(f"mine to {request['messages'][0]['content']}")) as there:
        report = build(target_folder, tmp_path / "out", file=file, server=there.url, sampled=0.0, batch=4)
    records = list(read_records(tmp_path / "out" / "train.jsonl"))
    assert [exchange(as_json(record)) for record in records] == [
        (f"question {i}", f"mine to question {i}") for i in range(18)
    ]
    held = list(read_records(tmp_path / "out" / "heldout.jsonl"))
    assert [record.conversation for record in held] == [tuple(turns(f"question {i}")) for i in (18, 19)]
    measured = [trained for _, trained in documents_in(load_rows(tmp_path / "out" / "heldout.safetensors"))]
    assert sorted(measured) == [f"mine to question {i}".encode() + b"\xff" for i in (18, 19)]
    assert len(there.requests) == 20
    assert report["documents"] == 18
    assert report["unanswered"] == {"no prompt": 1}
    assert report["held_out"] == 2
    assert report == json.loads((tmp_path / "out" / "report.json").read_text())


def test_without_a_file_the_corpus_asks_the_server(target_folder: Path, tmp_path: Path):
    with speaking(lambda request: choice("an answer")) as there:
        report = build(target_folder, tmp_path / "out", server=there.url, prompts=7, batch=3, buckets=(128,))
    assert report["documents"] == 7
    assert sum(report["held_out_rows"].values()) > 0
    assert [request["max_tokens"] for request in there.requests] == [136] * (7 + SMALL["heldout"])


def test_a_key_that_the_environment_does_not_have_is_named(
    target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MY_KEY", raising=False)
    file = file_of(tmp_path, {"messages": turns("a", "b")})
    with pytest.raises(UsageError, match=r"^data.server_key: the environment has no MY_KEY; set it$"):
        build(target_folder, tmp_path / "out", file=file, server="http://127.0.0.1:9/v1", server_key="MY_KEY")
    monkeypatch.setenv("MY_KEY", "secret")
    with speaking(lambda request: choice("an answer")) as there:
        build(target_folder, tmp_path / "out", file=file, server=there.url, server_key="MY_KEY")
    assert there.keys == ["Bearer secret"]


def test_a_bad_line_is_named_before_the_server_is_asked(target_folder: Path, tmp_path: Path):
    file = file_of(tmp_path, *({"messages": turns("a", "b")} for _ in range(9)), {"messages": "none"})
    with speaking() as there, pytest.raises(DataError, match=rf"^{file}:10: neither 'text'"):
        build(target_folder, tmp_path / "out", file=file, server=there.url)
    assert there.requests == []


# --- several files


def test_a_folder_of_files_is_one_set_with_an_account_of_each(target_folder: Path, tmp_path: Path):
    folder = tmp_path / "data"
    folder.mkdir()
    lines = [json.dumps({"text": f"text {number} of the first"}) for number in range(5)]
    (folder / "a.jsonl").write_text("\n".join(lines))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "zipped text"}\n{"text": "no"}\n'))
    report = build(target_folder, tmp_path / "out", file=str(folder))
    assert {name: figures["documents"] for name, figures in report["sources"].items()} == {
        str(folder / "a.jsonl"): 5,
        str(folder / "b.jsonl.gz"): 1,
    }
    assert report["sources"][str(folder / "b.jsonl.gz")]["dropped"] == {"shorter than a block": 1}
    found = [whole for whole, _ in documents_in(load_rows(tmp_path / "out" / "rows.safetensors"))]
    assert b"zipped text" in found
    assert len(found) == report["documents"] == 6


def test_text_with_the_mask_token_is_named_by_its_line(target_folder: Path, tmp_path: Path):
    mask = byte_tokenizer().convert_tokens_to_ids(USER)
    file = file_of(tmp_path, {"text": "long enough"}, {"text": f"with {USER} in it"})
    with pytest.raises(DataError, match=rf"^{file}:2: the mask token {mask}"):
        build(target_folder, tmp_path / "out", file=file, mask_token_id=mask)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"server": "localhost:8000"}, "server is an address such as http://host:8000/v1, not 'localhost:8000'"),
        ({"server_patience": -1.0}, "server_patience is a time in seconds, not -1.0"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"mask_token_id": -1}, "mask_token_id is a row of the vocabulary, not -1"),
    ],
)
def test_a_setting_that_can_not_be_is_refused(setting: dict[str, Any], reason: str):
    with pytest.raises(ValueError, match=reason):
        DataConfig(**setting)
