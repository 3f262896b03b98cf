"""A run that would write down or send one of its secrets does not begin, and says where the secret is."""

from __future__ import annotations

import base64
import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest

from dflash.errors import UsageError
from dflash.pipeline import leaks
from dflash.pipeline.source import Origin, changed, origin, snapshot
from tests.pipeline.checkout import checkout_in, commit, git
from tests.pipeline.lab import Lab

SECRET = "hunter22/öäü"
PUSH = "name: push\nsteps:\n  - {name: push, uses: work, secrets: [HF_TOKEN]}\n"
KEY = """\
-----BEGIN PRIVATE KEY-----
MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj
-----END PRIVATE KEY-----
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return checkout_in(tmp_path / "project")


def refuse(home: Path, secret: str = SECRET, without: tuple[Path, ...] = ()) -> None:
    leaks.refuse_in_source({"HF_TOKEN": secret}, changed(home, without), "recorded")


@pytest.mark.parametrize(
    "form", [SECRET, json.dumps(SECRET), base64.b64encode(b"ann:" + SECRET.encode()).decode(), "hunter22%2F%C3%B6"]
)
def test_a_secret_in_a_file_that_nothing_ignores_is_named_with_its_line_whatever_its_form(checkout: Path, form: str):
    form += "%C3%A4%C3%BC" if "%" in form else ""
    (checkout / ".env").write_text(f"A=1\n\nHF_TOKEN={form}\n")
    with pytest.raises(UsageError) as refused:
        refuse(checkout)
    what = "secret HF_TOKEN is in .env:3, which would be recorded with the source; add it to .gitignore or take it out"
    assert str(refused.value) == what
    assert refused.value.exit_code == 2
    refuse(checkout, without=(checkout / ".env",))  # it goes along as data
    (checkout / ".env").rename(checkout / "ignored")
    refuse(checkout)


def test_a_secret_in_a_tracked_file_is_found_when_it_is_added_when_it_goes_and_when_it_only_lies_there(checkout: Path):
    place = checkout / "dflash" / "one.py"
    place.write_text(f"one = 1\ntoken = '{SECRET}'\n")
    with pytest.raises(UsageError, match=r"HF_TOKEN is in dflash/one\.py:2, which would be recorded"):
        refuse(checkout)
    commit(checkout)
    os.utime(place, (1, 1))  # git looks at it again, and finds it as it was
    refuse(checkout)  # the record names the commit, and has nothing of it
    with pytest.raises(UsageError, match=r"is in dflash/one\.py:2, which would be sent with the source"):
        leaks.refuse_in_source({"HF_TOKEN": SECRET}, leaks.packed(snapshot(checkout)[0]), "sent")
    place.unlink()
    gone = r"is in dflash/one\.py \(as it was committed\):2, which would be recorded .*; commit what takes it out"
    with pytest.raises(UsageError, match=gone):
        refuse(checkout)
    commit(checkout)
    refuse(checkout)


@pytest.mark.parametrize("how", ["--skip-worktree", "--assume-unchanged"])
def test_a_change_that_git_was_told_to_overlook_is_not_overlooked(checkout: Path, how: str):
    git(checkout, "update-index", how, "dflash/one.py")
    (checkout / "dflash" / "one.py").write_text(f"token = '{SECRET}'\n")
    with pytest.raises(UsageError, match=r"HF_TOKEN is in dflash/one\.py:1, which would be recorded"):
        refuse(checkout)


@pytest.mark.parametrize(
    "line", ["NAME=hf_a", "export NAME='a b'", "NAME: hf_abc # mine", '  NAME: "x"', "NAME = four\r"]
)
def test_a_secret_that_is_not_set_is_known_by_the_line_that_sets_it(checkout: Path, line: str):
    (checkout / ".env").write_text(f"A=1\n\n{line}\n".replace("NAME", "HF_TOKEN"))
    with pytest.raises(UsageError) as refused:
        leaks.refuse_set_in_source({"A_TOKEN", "HF_TOKEN"}, changed(checkout), "sent")
    assert str(refused.value) == (
        "secret HF_TOKEN is given a value in .env:3, which would be sent with the source; add it to .gitignore or "
        "take it out; if it is another's, export HF_TOKEN=… with what it is"
    )
    leaks.refuse_set_in_source({"TOKEN", "HF"}, changed(checkout), "sent")
    leaks.refuse_set_in_source((), changed(checkout), "sent")


def test_a_line_that_only_names_a_secret_is_no_value_of_it(checkout: Path):
    lines = ["NAME=", "NAME=$OTHER", 'NAME="${OTHER}"', "NAME: ${{ secrets.NAME }}", "NAME: str", "NAME="]
    lines += ['NAME = os.environ["NAME"]', "NAME = None", "export NAME=…", "NAME=<yours>", "NAME="]
    lines += ["a NAME=abcdef", "NAME_OF=abcdef", "NAME: the one to log in with"]
    (checkout / "notes").write_text("\n".join([*lines, "abcdef"]).replace("NAME", "HF_TOKEN"))
    leaks.refuse_set_in_source({"HF_TOKEN"}, changed(checkout), "sent")


def test_where_a_link_leads_what_a_file_is_called_and_a_file_of_bytes_are_looked_at(checkout: Path):
    (checkout / "link").symlink_to("to-hunter22-secret")
    with pytest.raises(UsageError, match=r"is in link:1,"):
        refuse(checkout, "hunter22-secret")
    (checkout / "link").unlink()
    (checkout / "of-hunter22-secret").touch()
    with pytest.raises(UsageError, match=r"HF_TOKEN is in a file's name, which") as refused:
        refuse(checkout, "hunter22-secret")
    assert "hunter22" not in str(refused.value)
    (checkout / "of-hunter22-secret").unlink()
    (checkout / "weights.bin").write_bytes(bytes(1000) + b"hunter22-secret" + bytes(1000))
    with pytest.raises(UsageError, match=r"is in weights\.bin:1,"):
        refuse(checkout, "hunter22-secret")


def test_what_any_file_may_hold_by_chance_is_no_secret(checkout: Path):
    (checkout / "notes").write_text("-----BEGIN PRIVATE KEY-----\n{\n  YWJj 123\n}\n")
    refuse(checkout, KEY)
    refuse(checkout, '{\n  "type": "account",\n  "key": "a-longer-one-than-all-others"\n}')
    (checkout / "words").write_text("eventual events\n")
    refuse(checkout, "event")
    (checkout / "words").write_text("of an\nevent.\n")
    with pytest.raises(UsageError, match=r"is in words:2,"):
        refuse(checkout, "event")
    (checkout / "words").unlink()
    (checkout / "notes").write_text("key: |\n" + "".join(f"  {line}\n" for line in KEY.splitlines()))
    with pytest.raises(UsageError, match=r"is in notes:3,"):
        refuse(checkout, KEY)


def test_without_secrets_nothing_is_read(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    def look(*_: object, **__: object) -> object:
        raise AssertionError("somebody has looked")

    monkeypatch.setattr("dflash.pipeline.run.origin", lambda **_: Origin("c0ffee", b"+changed\n"))
    for name in ("changed", "outputs_in", "inputs_of", "_found"):
        monkeypatch.setattr(leaks, name, look)
    lab.file.write_text(PUSH.replace(", secrets: [HF_TOKEN]", ""))
    assert lab.run().exit_code == 0
    lab.file.write_text(PUSH)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    with pytest.raises(AssertionError, match="somebody has looked"):
        lab.run()


def test_a_run_that_would_record_its_secret_is_refused_before_anything_is_written(
    lab: Lab, checkout: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    lab.file.write_text(PUSH)
    (checkout / ".env").write_text(f"HF_TOKEN={SECRET}\n")
    monkeypatch.setattr("dflash.pipeline.run.origin", partial(origin, checkout))
    monkeypatch.setattr("dflash.pipeline.leaks.changed", partial(changed, checkout))
    with pytest.raises(UsageError, match=r"^secret HF_TOKEN is in \.env:1, which would be recorded with the source"):
        lab.run()
    assert not (lab.root / "runs").exists()
    monkeypatch.setenv("HF_TOKEN", "another one")
    assert lab.run().exit_code == 0
    assert (lab.runs()[0] / "source.patch").exists()


def test_a_run_whose_finished_step_has_a_secret_in_a_file_of_variables_is_refused(
    lab: Lab, checkout: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    lab.file.write_text(PUSH)
    monkeypatch.setattr("dflash.pipeline.run.origin", partial(origin, checkout))
    monkeypatch.setattr("dflash.pipeline.leaks.changed", partial(changed, checkout))
    assert lab.run().exit_code == 0
    monkeypatch.delenv("HF_TOKEN")
    assert lab.run().exit_code == 0
    (checkout / ".env").write_text(f"HF_TOKEN={SECRET}\n")
    with pytest.raises(UsageError, match=r"^secret HF_TOKEN is given a value in \.env:1, which would be recorded"):
        lab.run()
    assert len(lab.runs()) == 2


@pytest.mark.parametrize(
    ("text", "override", "where"),
    [
        (f"{PUSH}    # {SECRET}\n", "", r"pipeline\.yaml:4"),
        (PUSH, f"push.label={SECRET}", r"--set push\.label=…"),
        (PUSH.replace("work,", 'work, with: {label: "hunter22/\\xf6\\u00e4\\xfc"},'), "", "the settings of step push"),
    ],
)
def test_a_secret_in_what_is_asked_for_is_named_and_not_shown(
    text: str, override: str, where: str, lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    lab.file.write_text(text)
    with pytest.raises(UsageError, match=rf"HF_TOKEN is in (\S*/)?{where}, which the run's record would") as refused:
        lab.run(*filter(None, [override]))
    assert SECRET not in str(refused.value)
    assert not (lab.root / "runs").exists()


def test_a_secret_on_the_command_line_is_found(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setattr(sys, "argv", ["inv", "train", "--root", f"/tmp/{SECRET}"])
    lab.file.write_text(PUSH)
    with pytest.raises(UsageError, match=r"^secret HF_TOKEN is in the command line, which"):
        lab.run()
