from __future__ import annotations

import re
from pathlib import Path

import pytest

from dflash.environments import lock_id, parse_lock, read_lock, read_spec
from dflash.errors import ConfigError, StorageError

LOCAL = Path(__file__).parents[2] / "envs" / "local"
HASH = "--hash=sha256:" + "a" * 64


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_lock(text.encode(), "some.lock")
    return caught.value


def test_an_entry_has_name_version_marker_hashes_and_line() -> None:
    other = "--hash=sha256:" + "b" * 64
    text = f"# head\nSome_Name==1.2 ; python_version < '3.12' \\\n  {HASH} \\\n  {other}\n  # via x\n"
    lock = parse_lock(text.encode(), "some.lock")
    (entry,) = lock.entries
    assert (entry.name, entry.version, entry.line) == ("some-name", "1.2", 2)
    assert entry.hashes == {"a" * 64, "b" * 64}
    assert list(lock.here({"python_version": "3.11"})) == ["some-name"]
    assert lock.here({"python_version": "3.12"}) == {}
    assert lock.id == lock_id(text.encode())


def test_of_two_versions_the_marker_chooses() -> None:
    text = f"a==1 ; python_version < '3.12' {HASH}\na==2 ; python_version >= '3.12' {HASH}\n"
    lock = parse_lock(text.encode(), "some.lock")
    assert lock.here({"python_version": "3.11"})["a"].version == "1"
    assert lock.here({"python_version": "3.13"})["a"].version == "2"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (f"fine==1 {HASH}\nloose>=1 {HASH}\n", "some.lock:2:1: loose is not pinned"),
        (f"star==1.* {HASH}\n", "star is not pinned"),
        ("bare==1\n", "bare has no sha256 hash"),
        ("bare==1 --hash=md5:00\n", "bare has no sha256 hash"),
        (f"--extra-index-url somewhere\nfine==1 {HASH}\n", "some.lock:1:1: the option '--extra-index-url'"),
        (f"not a requirement {HASH}\n", "is not a requirement"),
        ("# nothing\n", "no package is locked"),
        ("", "no package is locked"),
    ],
)
def test_what_is_not_a_lock_is_refused_with_its_line(text: str, what: str) -> None:
    assert what in str(refused(text))


def test_a_lock_that_is_not_text_or_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not UTF-8"):
        parse_lock(b"\xff\xfe", "some.lock")
    with pytest.raises(StorageError, match="No such file"):
        read_lock(tmp_path / "absent.lock")


def test_the_local_lock_has_what_is_asked_for_and_no_cuda() -> None:
    lock, spec = read_lock(LOCAL / "requirements.lock"), read_spec(LOCAL / "env.yaml")
    names = {each.name for each in lock.entries}
    asked = re.findall(r"^[A-Za-z][\w-]*", (LOCAL / "requirements.in").read_text(), re.MULTILINE)
    assert {name.lower() for name in asked} <= names
    assert not [name for name in names if name.startswith(("nvidia", "cuda", "triton"))]
    assert lock.here()["torch"].version == spec.torch == "2.13.0+cpu"
    assert len(lock.here()["torch"].hashes) == 6


def test_no_file_of_the_environment_names_an_index_or_a_place_on_this_machine() -> None:
    for path in LOCAL.iterdir():
        text = path.read_text()
        assert "://" not in text, path
        assert "--find-links" not in text, path
        assert not re.search(r"(?<!\w)/(opt|home|root|tmp|work)/", text), path
