"""`./inv evaluate` as a person types it: a table or JSON on standard output, and mistakes in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash import cli
from dflash.model.layout import write_layout
from dflash.training.records import write_records
from tests.tiny import new_draft

Said = tuple[int, str, str]


@pytest.fixture
def inv(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., Said]:
    """A verb in this process: what importing torch once more would take is most of a test's time."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(*words: object) -> Said:
        status = 0
        try:
            cli.main([str(word) for word in words])
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 0
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    folder = tmp_path / "draft"
    folder.mkdir()
    write_layout(new_draft().float(), folder)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> list[Path]:
    chats = [{"conversations": [{"role": "user", "content": prompt}]} for prompt in ("import os", "def f(")]
    files = [tmp_path / "code.jsonl", tmp_path / "more.jsonl"]
    write_records(files[0], [*chats, {"text": "nobody asks"}])
    write_records(files[1], chats[:1])
    return files


def test_a_table_has_a_line_for_each_data_set_and_one_for_all(
    inv: Callable[..., Said], target_folder: Path, draft: Path, data: list[Path]
):
    given = [word for file in data for word in ("--data", file)]
    status, out, err = inv("evaluate", draft, "--target", target_folder, *given, "--new-tokens", 6)
    assert status == 0, err
    lines = out.splitlines()
    assert lines[0].split() == (
        ["data", "prompts", "tokens", "acceptance", "length", "tokens/s", "plain", "speedup", "identical"]
    )
    assert [line.split()[:3] for line in lines[1:4]] == [["code", "2", "12"], ["more", "1", "6"], ["all", "3", "18"]]
    assert lines[1].endswith("2 of 2")
    assert lines[6].split() == ["data", "1", "2", "3"]
    assert lines[-1] == "code: 1 passed over: a text, no conversation"
    assert f"evaluate   starts: {draft} with {target_folder}, float64 on cpu" in err


def test_json_is_one_document_with_the_settings_and_sampling_compares_no_outputs(
    inv: Callable[..., Said], target_folder: Path, draft: Path, data: list[Path]
):
    options = ("--temperature", 0.8, "--limit", 1, "--dtype", "float32", "--seed", 3, "--new-tokens", 6, "--json")
    status, out, err = inv("evaluate", draft, "--target", target_folder, "--data", data[0], *options)
    assert status == 0, err
    document = json.loads(out)
    assert (document["temperature"], document["dtype"], document["seed"], document["block"]) == (0.8, "float32", 3, 4)
    (code,) = document["datasets"]
    assert (code["prompts"], code["tokens"]) == (1, 6)
    assert "identical" not in code


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("--data", "absent.jsonl"), 5, "absent.jsonl: No such file or directory; check that the path exists"),
        ((), 2, "--data is missing; give it: --data FILE, once for each data set"),
        (("--data", "x", "--temperature", "-1"), 2, "evaluate: temperature is 0 (greedy) or above, not -1.0"),
        (("--data", "x", "--new-tokens", "1"), 2, "evaluate: new_tokens must be at least 2, not 1"),
        (("--data", "x", "--limit", "-1"), 2, "evaluate: limit must be at least 0, not -1"),
        (("--data", "x", "--dtype", "int8"), 2, "evaluate: dtype is float64, float32 or bfloat16, not 'int8'"),
        (("--data", "x", "--device", "tpu"), 2, "evaluate: device is cpu or cuda, not 'tpu'"),
    ],
)
def test_a_mistake_is_one_line(
    inv: Callable[..., Said], target_folder: Path, draft: Path, words: tuple[str, ...], status: int, says: str
):
    code, out, err = inv("evaluate", draft, "--target", target_folder, *words)
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (code, out, len(errors)) == (status, "", 1), err
    assert errors[0].startswith(f"error: {says}")


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("absent", "--target", "nowhere"), 2, "nowhere: not a model folder"),
        (("absent", "--target", "{target}"), 7, "absent: there is no such folder; name a checkpoint, or an exported"),
        (("{target}", "--target", "{target}"), 7, "{target}: not a drafter that can be loaded ("),
        (("absent",), 2, "--target is missing"),
        ((), 2, "'evaluate' did not receive required positional arguments: 'checkpoint'"),
    ],
)
def test_what_is_not_there_or_is_something_else_is_named(
    inv: Callable[..., Said], target_folder: Path, data: list[Path], words: tuple[str, ...], status: int, says: str
):
    given = [word.format(target=target_folder) for word in words]
    code, out, err = inv("evaluate", *given, "--data", data[0])
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (code, out, len(errors)) == (status, "", 1), err
    assert errors[0].startswith(f"error: {says.format(target=target_folder)}")
