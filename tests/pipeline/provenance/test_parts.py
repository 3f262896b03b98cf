"""The parts of a run's provenance, each from what a real machine, process or file says."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest
import yaml
from safetensors.numpy import save_file

from dflash.pipeline.provenance.artifacts import artifacts, metrics, tensors_digest
from dflash.pipeline.provenance.environment import packages
from dflash.pipeline.provenance.hashes import Hashes
from dflash.pipeline.provenance.libraries import hashed, loaded
from dflash.pipeline.provenance.machine import FACTS, VARIABLES, described
from dflash.pipeline.provenance.observing import Observing
from dflash.pipeline.provenance.variables import HIDDEN, kept, of_workers, without_credentials
from dflash.pipeline.store import Done
from dflash.pipeline.store import Output as Made
from dflash.provision.fact import MISSING, Facts, Output

MACHINES = Path(__file__).parents[2] / "data" / "machines"
MAPS = """\
7f10a0000000-7f10a0021000 rw-p 00000000 00:00 0
7f10c2a00000-7f10c2b00000 r--p 00000000 fe:00 131 /envs/t/lib/python3.12/site-packages/nvidia/cublas/lib/libcublas.so.12
7f10c2b00000-7f10c2c00000 r-xp 00100000 fe:00 131 /envs/t/lib/python3.12/site-packages/nvidia/cublas/lib/libcublas.so.12
7f10d0000000-7f10d0100000 r-xp 00000000 fe:00 132 /envs/t/lib/python3.12/site-packages/torch/lib/libtorch_cpu.so
7f10d1000000-7f10d1100000 r-xp 00000000 fe:00 133 /usr/lib/x86_64-linux-gnu/libc.so.6
7f10d1200000-7f10d1300000 r-xp 00000000 fe:00 134 /a folder/libgomp-24e2ab19.so.1.0.0
7f10d1400000-7f10d1500000 r-xp 00000000 fe:00 135 /usr/lib/x86_64-linux-gnu/libexpat.so.1.8.10
7f10d1600000-7f10d1700000 r-xp 00000000 fe:00 136 /tmp/libnccl.so.2 (deleted)
7ffd3d5f2000-7ffd3d613000 rw-p 00000000 00:00 0 [stack]
"""


def test_of_what_a_process_has_mapped_the_libraries_that_compute_are_found():
    site = "/envs/t/lib/python3.12/site-packages"
    assert loaded(MAPS) == [
        "/a folder/libgomp-24e2ab19.so.1.0.0",
        f"{site}/nvidia/cublas/lib/libcublas.so.12",
        f"{site}/torch/lib/libtorch_cpu.so",
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
    ]


def test_two_libraries_of_one_name_are_both_kept_where_they_differ(tmp_path: Path):
    places = [tmp_path / name / "libnccl.so.2" for name in ("a", "b", "c")]
    for place, content in zip(places, (b"12", b"13", b"12"), strict=True):
        place.parent.mkdir()
        place.write_bytes(content)
    found = hashed([*map(str, places), str(tmp_path / "gone.so")], Hashes(tmp_path))
    assert set(found) == {"libnccl.so.2", str(places[1])}


def test_a_file_is_hashed_again_only_when_it_may_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    with Hashes(tmp_path) as hashes:
        first = hashes.of(file)
    with monkeypatch.context() as deaf:
        deaf.setattr("dflash.pipeline.provenance.hashes.sha256", lambda path: "read again")
        assert Hashes(tmp_path).of(file) == first
    before = file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert Hashes(tmp_path).of(file) != first
    (tmp_path / "work" / "hashes.json").write_text("{")
    assert Hashes(tmp_path).of(file) != first


def test_what_a_step_made_is_read_once_and_what_can_not_be_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    save_file({"a": numpy.ones(4, dtype=numpy.int32)}, tmp_path / "a.safetensors")
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "gone")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n')
    names = ("a.safetensors", "link.safetensors", "taken.safetensors")
    outputs = tuple(Made(name, 1, name, 0) for name in names)
    done = Done("k", "train", {}, {}, {}, outputs, 1.0, 0.0, "run")
    with Hashes(tmp_path) as hashes:
        made, rows = artifacts(tmp_path, done, hashes), metrics(tmp_path, hashes)
    assert {name: set(made[name]) for name in names} == {
        names[0]: {"sha256", "tensors"},
        names[1]: {"sha256"},
        names[2]: {"sha256"},
    }
    assert rows == metrics(tmp_path)
    assert metrics(tmp_path / "gone") is None
    with monkeypatch.context() as deaf, Hashes(tmp_path) as hashes:
        for name in ("tensors_digest", "_rows"):
            deaf.setattr(f"dflash.pipeline.provenance.artifacts.{name}", lambda path: "0 again")
        assert (artifacts(tmp_path, done, hashes), metrics(tmp_path, hashes)) == (made, rows)
        with (tmp_path / "metrics.jsonl").open("a") as log:
            log.write('{"step": 2, "loss": 2.25}\n')
        assert (metrics(tmp_path, hashes) or {})["digest"] == "again"


def test_of_a_package_that_is_there_twice_the_one_that_is_imported_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for folder, version in (("first", "5.24.0"), ("second", "5.17.0")):
        place = tmp_path / folder / f"there_twice-{version}.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: There_Twice\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second"), *sys.path])
    assert packages()["there-twice"] == "5.24.0"


def test_variables_are_kept_by_name_and_no_secret_with_them():
    environ = {
        "OMP_NUM_THREADS": "1",
        "NCCL_DEBUG": "INFO",
        "HF_TOKEN": "hf_abc",
        "DFLASH_VAULT_KEY": "/root/key",
        "NCCL_PROXY": "http://ann:pass@proxy/x?token=abc",
        "TORCH_OF_MINE": "told by name",
        "PASSWORD": "nothing",
        "HOME": "/root",
    }
    assert kept(environ, ["TORCH_OF_MINE"]) == {
        "DFLASH_VAULT_KEY": HIDDEN,
        "HF_TOKEN": HIDDEN,
        "NCCL_DEBUG": "INFO",
        "NCCL_PROXY": "http://proxy/x",
        "OMP_NUM_THREADS": "1",
        "TORCH_OF_MINE": HIDDEN,
    }
    assert without_credentials("git@github.com:a/b.git") == "git@github.com:a/b.git"
    assert of_workers([{"RANK": "0", "WORLD_SIZE": "2"}, {"RANK": "1", "WORLD_SIZE": "2"}]) == {
        "RANK": "0, 1",
        "WORLD_SIZE": "2",
    }


def test_a_machine_is_described_by_its_gpus_and_how_they_reach_each_other():
    recorded = yaml.safe_load((MACHINES / "h200-x2.yaml").read_text())["host"]
    known = {fact: Output(**{"status": 0, **recorded.get(fact.name, {"status": MISSING})}) for fact in FACTS}
    found = described(Facts({**known, VARIABLES: Output(0, "CUDA_VISIBLE_DEVICES=0\0HF_TOKEN=abc\0TERM=x\0")}))
    assert found["gpus"]["models"] == ["NVIDIA H200", "NVIDIA H200"]
    assert found["gpus"]["driver"] == "580.159.04"
    assert found["gpus"]["topology"] == "0-1 NV18"
    assert found["environment"]["machine"] == "x86_64"
    assert found["variables"]["runner"] == {"CUDA_VISIBLE_DEVICES": "0", "HF_TOKEN": HIDDEN}


def test_of_a_machine_that_says_nothing_nothing_is_said():
    found = described(Facts({fact: Output(MISSING) for fact in FACTS}))
    assert found["gpus"].pop("models") == []
    assert {value for part in found.values() for value in part.values() if value != {}} == {None}


def test_tensors_are_the_same_whatever_else_the_file_says_of_itself(tmp_path: Path):
    tensors = {"a": numpy.arange(6, dtype=numpy.float32).reshape(2, 3), "b": numpy.ones(4, dtype=numpy.int32)}
    save_file(tensors, tmp_path / "one", metadata={"made": "today"})
    save_file(dict(reversed(tensors.items())), tmp_path / "two", metadata={"made": "tomorrow, elsewhere"})
    assert tensors_digest(tmp_path / "one") == tensors_digest(tmp_path / "two") != ""
    tensors["a"][1, 2] = numpy.nextafter(tensors["a"][1, 2], numpy.float32(9))
    save_file(tensors, tmp_path / "three")
    assert tensors_digest(tmp_path / "three") != tensors_digest(tmp_path / "one")
    whole = (tmp_path / "one").read_bytes()
    (tmp_path / "torn").write_bytes(whole[:-1])
    (tmp_path / "none").write_bytes(b"no tensors")
    assert tensors_digest(tmp_path / "torn") == tensors_digest(tmp_path / "none") == ""


def test_what_a_launcher_gave_to_its_workers_is_seen_while_they_run(tmp_path: Path):
    environ = {**os.environ, "RANK": "1", "OMP_NUM_THREADS": "1", "NCCL_MINE": "abc", "EDITOR": "vi"}
    command = [sys.executable, "-c", "input()"]
    with (
        Observing(["NCCL_MINE"]) as observing,
        subprocess.Popen(command, env=environ, stdin=subprocess.PIPE) as worker,
    ):
        found = observing.observed(tmp_path)
        worker.communicate(b"\n")
    assert found["workers"]["RANK"] == "1"
    assert found["workers"]["OMP_NUM_THREADS"] == "1"
    assert found["workers"]["NCCL_MINE"] == HIDDEN
    assert "EDITOR" not in found["workers"]
    assert set(found["libraries"]) >= {"libc.so.6"}


def test_nothing_is_noted_beside_a_step_that_is_asked_what_it_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    looking, most = [0], [0]

    def look(pid: int) -> list[int]:
        looking[0] += 1
        most[0] = max(most[0], looking[0])
        time.sleep(0.02)
        looking[0] -= 1
        return []

    monkeypatch.setattr("dflash.pipeline.provenance.observing._FIRST_S", 0.0)
    monkeypatch.setattr("dflash.pipeline.provenance.observing._descendants", look)
    with Observing() as observing:
        time.sleep(0.01)
        observing.observed(tmp_path)
    assert most == [1]
