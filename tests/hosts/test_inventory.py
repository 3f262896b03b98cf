"""hosts.yaml: what it declares, and errors with their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash.errors import ChainError, ConfigError, UsageError
from dflash.hosts.chain import Pct, Ssh
from dflash.hosts.inventory import find_host, load_inventory
from dflash.pipeline.keys import HOME


def written(folder: Path, text: str) -> Path:
    file = folder / "hosts.yaml"
    file.write_text(text)
    return file


def test_a_host_is_its_chain_root_gpus_and_labels(tmp_path: Path):
    file = written(tmp_path, "gpu1:\n  chain: ssh:gpu1/pct:200\n  root: /root/dflash\n  gpus: 8\n  labels: [h200]\n")
    host = find_host("gpu1", file)
    assert host.chain.hops == (Ssh("gpu1"), Pct(200))
    assert (host.root, host.gpus, host.labels) == ("/root/dflash", 8, ("h200",))


def test_the_example_is_valid():
    assert set(load_inventory(HOME / "hosts.example.yaml")) == {"gpu1", "spare"}


def test_a_chain_needs_no_inventory(tmp_path: Path):
    assert str(find_host("ssh:gpu1/pct:200", tmp_path / "hosts.yaml").chain) == "ssh:gpu1/pct:200"
    with pytest.raises(ChainError):
        find_host("pct:1", tmp_path / "hosts.yaml")


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("gpu1:\n  chain: ssh:a/pct:7\n", "2:10", "hop 2 'pct:7': a container's number is from 100"),
        ("gpu1:\n  chian: local\n", "2:3", "unknown key 'chian'; did you mean 'chain'?"),
        ("gpu1:\n  root: /x\n", "2:3", "the key 'chain' is missing"),
        ("gpu1:\n  chain: local\n  gpus: -1\n", "3:9", "must be greater than or equal to 0, not -1"),
        ("gpu1:\n  chain: local\n  gpus: many\n", "3:9", 'must be a valid integer, not "many"'),
        ("gpu1:\n  chain: local\n  root: here\n", "3:9", "must be an absolute path, not 'here'"),
        ("gpu1:\n  chain: local\n  root: /a:b\n", "3:9", "can not have a ':', which ends a path in PYTHONPATH"),
        ("gpu1: local\n", "1:7", 'must be a map, not "local"'),
        ("- gpu1\n", "1:1", "an inventory is a map"),
        ("sudo:\n  chain: local\n", "1:1", "'sudo' can not name a host"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, text: str, place: str, says: str):
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_inventory(file)
    assert str(caught.value).startswith(f"{file}:{place}: ")
    assert says in str(caught.value)


def test_an_unknown_name_gets_the_nearest_one(tmp_path: Path):
    file = written(tmp_path, "gpu1:\n  chain: local\n")
    with pytest.raises(UsageError, match="there is no host 'gpu'; did you mean 'gpu1'"):
        find_host("gpu", file)
    with pytest.raises(UsageError, match=r"there is no inventory; .*copy hosts.example.yaml"):
        find_host("gpu1", tmp_path / "absent.yaml")
