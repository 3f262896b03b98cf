"""A container as a person declares it: what is taken, and what is refused with its place in the file."""

from __future__ import annotations

import pytest

from dflash.document import parse
from dflash.errors import ConfigError, UsageError
from dflash.hosts.chain import parse_chain
from dflash.provision.container import ContainerSpec, Mount
from dflash.provision.operation import Operation
from dflash.provision.operations.container import inside, on_host
from dflash.validation import validated


def declared(text: str) -> ContainerSpec:
    spec: ContainerSpec = validated(ContainerSpec, parse(text, "hosts.yaml"))
    return spec


def test_all_words_of_a_declaration_are_taken():
    spec = declared(
        "image: debian/12\ncores: 8\nmemory_gib: 64\nshm_gib: 16\nprivileged: true\nnesting: true\ngpus: [0, 3]\n"
        "devices: [/dev/fuse]\nmounts: [{host: /srv, inside: /data, read_only: true}]\nnetwork: br0\nstorage: fast\n"
        "autostart: false\ndriver: /srv/nvidia/driver.run\nraw: [lxc.cap.drop =]\n"
    )
    assert spec.gpus == (0, 3)
    assert spec.all_mounts[0] == Mount("/srv", "/data", read_only=True)
    assert spec.all_mounts[1].host == "/srv/nvidia"  # where the installer is
    assert declared("image: x\ngpus: all\n").binds_driver
    assert not declared("image: x\n").binds_driver


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cores: 8\n", "hosts.yaml:1:1: the key 'image' is missing"),
        ("image: x\ngpu: all\n", "hosts.yaml:2:1: unknown key 'gpu'; did you mean 'gpus'?"),
        ("image: x\ncores: 0\n", "cores and sizes must be at least 1, not 0"),
        ("image: --privileged\n", "an image begins with a letter, a digit or /, and has no blanks: '--privileged'"),
        ("image: x\ndevices: [dev/fuse]\n", "must be an absolute path"),
        ("image: x\nmounts: [{host: '/a b', inside: /c}]\n", "hosts.yaml:2:10: must be an absolute path"),
        ("image: x\nmounts: [{host: '/a,ro=0', inside: /c}]\n", "must be an absolute path"),
        ("image: x\nmounts: [{host: /a, inside: /c}, {host: /b, inside: /c}]\n", "two mounts are at /c"),
        ("image: x\nmounts: [{host: /a, inside: /c}, {host: /b, inside: //c/}]\n", "two mounts are at /c"),
        ("image: x\nmounts: [{host: /a, inside: /}]\n", "hosts.yaml:2:10: a mount can not be at /"),
        ('image: x\nraw: ["lxc.a = 1\\nlxc.b = 2"]\n', "a raw line is written"),
        ("image: x\nstorage: --unprivileged\n", "storage begins with a letter or a digit, and has no blanks"),
        ("image: x\ndriver: latest\n", "must be an absolute path"),
    ],
)
def test_what_no_manager_could_take_is_refused_with_its_place(text: str, said: str):
    with pytest.raises(ConfigError) as caught:
        declared(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_place_has_one_name():
    assert Mount("/srv//models/", "/models/./") == Mount("/srv/models", "/models")
    assert Mount("/", "/host").host == "/"


@pytest.mark.parametrize("hop", ["pct:200", "lxc:a", "incus:r:a", "lxd:a", "docker:a"])
def test_every_hop_into_a_container_has_its_operation(hop: str):
    operations: list[Operation] = [*on_host(parse_chain(hop).hops[0], ContainerSpec("x")), *inside(ContainerSpec("x"))]
    assert all(operation.facts() for operation in operations)
    assert len({fact.name for operation in operations for fact in operation.facts()}) == len(
        [fact for operation in operations for fact in operation.facts()]
    )


def test_a_hop_that_is_no_container_has_none():
    with pytest.raises(UsageError, match="sudo:ops is no container"):
        on_host(parse_chain("sudo:ops").hops[0], ContainerSpec("x"))
