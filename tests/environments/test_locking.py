"""A lock is made from its inputs, says so, moves only what is asked to move, and is refused when torch is another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dflash.environments.lock import read_lock
from dflash.environments.locking import relock, stale, torch_as_declared
from dflash.environments.spec import read_spec
from dflash.errors import ConfigError, EnvironmentMismatch
from tests.wheels import make_wheel

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENTS = sorted(path.parent for path in (REPOSITORY / "envs").glob("*/env.yaml"))

SPEC = 'name: small\npython: ">=3.11,<3.14"\ntorch: "2.11.0"\ntorch_backend: cu130\ncuda: "13.0"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A declaration whose only source is a folder of wheels."""
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "torch", "2.11.0", requires=("numpy>=2",))
    make_wheel(wheels, "numpy", "2.3.0")
    make_wheel(wheels, "einops", "0.8.0")
    monkeypatch.setenv("UV_FIND_LINKS", str(wheels))
    (tmp_path / "nothing").mkdir()
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "nothing").as_uri())
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    place = tmp_path / "small"
    place.mkdir()
    (place / "env.yaml").write_text(SPEC)
    (place / "requirements.in").write_text("# what it needs\ntorch==2.11.0\neinops\n")
    return place


def pins(folder: Path) -> dict[str, str]:
    return {each.name: each.version for each in read_lock(folder / "requirements.lock").entries}


def test_a_lock_pins_everything_with_hashes_and_says_what_it_was_made_from(folder: Path):
    changes = relock(folder)
    assert [str(change) for change in changes] == [
        "einops: not there -> 0.8.0",
        "numpy: not there -> 2.3.0",
        "torch: not there -> 2.11.0",
    ]
    lock = read_lock(folder / "requirements.lock")
    assert all(each.hashes for each in lock.entries)
    assert lock.made_from["python"] == ">=3.11,<3.14"
    assert lock.made_from["torch"] == "2.11.0"
    text = (folder / "requirements.lock").read_text()
    assert "://" not in text
    assert str(folder.parent) not in text
    assert "# via -r requirements.in" in text
    assert stale(folder) == []


def test_pins_stay_until_one_is_named_to_move(folder: Path, tmp_path: Path):
    relock(folder)
    make_wheel(tmp_path / "wheels", "numpy", "2.4.0")
    make_wheel(tmp_path / "wheels", "einops", "0.9.0")
    assert relock(folder) == []
    assert [str(change) for change in relock(folder, ["einops"])] == ["einops: 0.8.0 -> 0.9.0"]
    assert pins(folder)["numpy"] == "2.3.0"


def test_a_hash_that_this_machine_can_not_see_is_kept(folder: Path):
    relock(folder)
    path, other = folder / "requirements.lock", "0" * 64
    text = path.read_text()
    path.write_text(text.replace("numpy==2.3.0 \\\n", f"numpy==2.3.0 \\\n    --hash=sha256:{other} \\\n"))
    relock(folder)
    (numpy,) = [each for each in read_lock(path).entries if each.name == "numpy"]
    assert other in numpy.hashes
    assert len(numpy.hashes) == 2


def test_a_comment_makes_no_lock_stale(folder: Path):
    relock(folder)
    path = folder / "requirements.in"
    path.write_text(path.read_text() + "\n# another word\n")
    assert stale(folder) == []


def test_the_input_that_has_changed_is_named(folder: Path):
    relock(folder)
    spec, requirements = folder / "env.yaml", folder / "requirements.in"
    spec.write_text(SPEC.replace("<3.14", "<3.13").replace('torch: "2.11.0"', 'torch: "2.12.0"'))
    requirements.write_text("torch==2.11.0\neinops>=1\nrich\n")
    found = stale(folder)
    assert found[0].startswith("requirements.in: requirements.in has changed since: sha256 ")
    assert found[1:] == [
        "env.yaml: python has changed since: >=3.11,<3.14 -> >=3.11,<3.13",
        "env.yaml: torch has changed since: 2.11.0 -> 2.12.0",
        "requirements.in: asks for einops>=1; the lock has 0.8.0",
        "requirements.in: asks for rich, which the lock does not have",
        "env.yaml: declares torch 2.12.0; the lock has 2.11.0",
    ]


def test_another_torch_than_declared_is_refused_and_the_lock_stays(folder: Path):
    relock(folder)
    before = (folder / "requirements.lock").read_bytes()
    (folder / "env.yaml").write_text(SPEC.replace('torch: "2.11.0"', 'torch: "2.11.0+cu130"'))
    with pytest.raises(EnvironmentMismatch, match=r"torch is locked as 2\.11\.0, env\.yaml declares 2\.11\.0\+cu130"):
        relock(folder)
    assert (folder / "requirements.lock").read_bytes() == before


def test_a_library_for_another_cuda_is_refused(folder: Path, tmp_path: Path):
    make_wheel(tmp_path / "wheels", "nvidia_nccl_cu12", "2.28.9")
    path = folder / "requirements.in"
    path.write_text(path.read_text() + "nvidia-nccl-cu12\n")
    with pytest.raises(EnvironmentMismatch, match=r"nvidia-nccl-cu12 is for CUDA 12, env\.yaml declares 13\.0"):
        relock(folder)


def test_what_no_index_has_is_one_line_and_the_lock_stays(folder: Path):
    relock(folder)
    before = (folder / "requirements.lock").read_bytes()
    (folder / "requirements.in").write_text("torch==2.11.0\nno-such-package\n")
    with pytest.raises(ConfigError, match="uv could not resolve it: .*no-such-package") as raised:  # noqa: RUF043
        relock(folder)
    assert "\n" not in str(raised.value)
    assert (folder / "requirements.lock").read_bytes() == before


def test_a_package_that_is_not_there_can_not_be_upgraded(folder: Path):
    relock(folder)
    with pytest.raises(ConfigError, match="there is no rich to upgrade"):
        relock(folder, ["rich"])


@pytest.mark.parametrize("place", ENVIRONMENTS, ids=lambda path: path.name)
def test_every_environment_of_the_project_is_locked_as_declared(place: Path):
    assert stale(place) == []
    lock, spec = read_lock(place / "requirements.lock"), read_spec(place / "env.yaml")
    torch_as_declared(lock, spec, place / "requirements.lock")
    assert spec.name == place.name
    text = (place / "requirements.lock").read_text()
    for trace in ("://", "/tmp", "/opt", "--index", "--find-links"):
        assert trace not in text
