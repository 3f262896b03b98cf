"""The `machine:` section of hosts.yaml: what it declares, and errors with their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash.errors import ConfigError
from dflash.hosts.inventory import load_inventory
from dflash.pipeline.keys import HOME
from dflash.provision.declaration import MachineSpec, declared


def written(folder: Path, section: str) -> Path:
    file = folder / "hosts.yaml"
    file.write_text(f"gpu1:\n  chain: ssh:gpu1\n  machine:\n    {section}\n")
    load_inventory(file)
    return file


def test_the_example_declares_a_machine_and_the_one_before_its_container():
    spec = declared("gpu1", HOME / "hosts.example.yaml")
    assert spec.packages == ["g++", "git"]
    assert spec.python == "==3.11.*"
    assert spec.host.limits == {"memlock": "unlimited", "nofile": 1048576}
    assert spec.host.mounts["/srv/models"].fstab
    assert spec.container is not None
    assert (spec.container.gpus, spec.container.mounts[0].inside) == ("all", "/srv/models")


@pytest.mark.parametrize("name", ["spare", "ssh:gpu1/pct:200", "local"])
def test_without_a_section_it_is_what_every_environment_needs(name: str):
    assert declared(name, HOME / "hosts.example.yaml") == MachineSpec()


@pytest.mark.parametrize(
    ("section", "place", "says"),
    [
        ("pakages: [git]", "4:5", "unknown key 'pakages'; did you mean 'packages'?"),
        ("packages: git", "4:15", 'must be a list, not "git"'),
        ("packages: ['git; reboot']", "4:16", "'git; reboot' is not a package"),
        ("packages: [git, -y]", "4:21", "'-y' is not a package"),
        ("packages: [git, curl-]", "4:21", "apt would read the last '-' as an order"),
        ("packages: [g++, curl+]", "4:21", "apt would read the last '+' as an order"),
        ("packages: ['g++=4:12-']", "4:16", "apt would read the last '-' as an order"),
        ("user: Trainer", "4:11", "'Trainer' can not name a user"),
        ("groups: [video]", "4:5", "groups are a user's; name the user"),
        ("python: three", "4:13", "'three' is not a Python; write '3.12'"),
        ("host: {groups: [render]}", "4:12", "groups are a user's; name the user"),
        ("python: 3.10", "4:13", "3.1 is a number, in which 3.10 is 3.1; write it in quotes"),
        ("python: ''", "4:13", "'' is not a Python; write '3.12'"),
        ("python: ' '", "4:13", "' ' is not a Python; write '3.12'"),
        ("directories: [srv]", "4:19", "must be an absolute path"),
        ("directories: [/srv/../etc]", "4:19", "must be an absolute path without '..'"),
        ("directories: [/]", "4:19", "must be an absolute path"),
        ("limits: {memlok: 1}", "4:13", "there is no limit 'memlok'"),
        ("limits: {nofile: -1}", "4:22", "nofile is a number or unlimited, not -1"),
        ("limits: {nofile: 'a b'}", "4:22", "nofile is a number or unlimited"),
        ("mounts: {/data: {type: ext4}}", "4:21", "the key 'source' is missing"),
        ("mounts: {/data: {source: -o}}", "4:30", "'-o' can not be mounted"),
        ("mounts: {/data: {source: UUID=1f}}", "4:30", "write the disk's path, such as /dev/disk/by-uuid/"),
        ("mounts: {/data: {source: /a, options: '-o x'}}", "4:43", "is not one word"),
        ("persistence: 'yes'", "4:18", 'must be a valid boolean, not "yes"'),
        ("host: {python: '3.12'}", "4:12", "unknown key 'python'"),
        ("container: {image: debian, core: 4}", "4:32", "unknown key 'core'; did you mean 'cores'?"),
        ("container: {image: '-v'}", "4:16", "an image begins with a letter"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, section: str, place: str, says: str):
    file = written(tmp_path, section)
    with pytest.raises(ConfigError) as caught:
        declared("gpu1", file)
    assert str(caught.value).startswith(f"{file}:{place}: ")
    assert says in str(caught.value)
