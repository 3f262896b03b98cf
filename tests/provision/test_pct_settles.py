"""What the Proxmox operation does once, it finds done the second time: on a file kept as Proxmox keeps it.

No Proxmox node can be had. `Node` does to a file what `pct` does, as PVE's own sources say: keys sorted, `lxc.` lines
last, properties added, changes of devices waiting for the next start of a container that runs.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

from dflash.hosts.chain import Pct
from dflash.provision.container import ContainerSpec, Mount
from dflash.provision.fact import Facts, Output
from dflash.provision.facts import pct
from dflash.provision.operation import Action, Change
from dflash.provision.operations.pct import EDIT, Container
from tests.provision.test_operations_data import MACHINES

SPEC = ContainerSpec(
    image="local:vztmpl/debian-12.tar.zst",
    storage="local-lvm:64",
    cores=8,
    memory_gib=64,
    shm_gib=8,
    nesting=True,
    gpus="all",
    network="name=eth0,bridge=vmbr0,ip=dhcp",
    mounts=(Mount("/srv/models", "/models", read_only=True), Mount("/srv/data", "/data")),
    raw=("lxc.environment = A=1",),
)


class Node:
    """A Proxmox node with at most the container 200."""

    def __init__(self, folder: Path) -> None:
        self.file, self.running = folder / "200.conf", False

    def known(self, container: Container) -> Facts:
        own = {
            "configuration of pct:200": Output(0, self.file.read_text()) if self.file.exists() else Output(1),
            "state of pct:200": Output(0, "status: running\n" if self.running else "status: stopped\n"),
        }
        recorded = {name: Output(**{"status": 0, **output}) for name, output in MACHINES["two-gpus"].items()}
        return Facts({fact: {**recorded, **own}[fact.name] for fact in container.facts()})

    def act(self, action: Action) -> None:
        match action.argv:
            case ("pct", "create", "200", image, *words):
                assert image == SPEC.image
                self.write({"arch": "amd64", "swap": "512"}, {}, words)
            case ("pct", "set", "200", *words):
                conf = pct.parse_conf(self.file.read_text())
                self.write(dict(conf.keys), dict(conf.sections), words)
            case ("pct", "start", "200"):
                self.running = True
            case ("pct", "reboot", "200"):
                assert self.running
                conf = pct.parse_conf(self.file.read_text())
                waiting = conf.sections["pve:pending"].keys if conf.pending else {}
                gone = waiting.get("delete", "").split(",")
                keys = {**{key: value for key, value in conf.keys.items() if key not in gone}, **waiting}
                keys.pop("delete", None)
                self.write(keys, {}, [])
            case ("sh", "-c", text, "sh", path, lines):
                assert (text, path) == (EDIT, "/etc/pve/lxc/200.conf")
                subprocess.run(["sh", "-c", EDIT, "sh", str(self.file), lines], input=action.stdin, check=True)
            case _:
                raise AssertionError(action.argv)

    def write(self, keys: dict[str, str], sections: dict[str, pct.Conf], words: list[str]) -> None:
        new = {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}
        if "net0" in new and "hwaddr" not in new["net0"]:
            new["net0"] += ",hwaddr=BC:24:11:E3:63:F2,type=veth"
        gone = new.pop("delete", "")
        waits = {key: value for key, value in new.items() if self.running and key[:3] in ("dev", "fea")}
        if gone and self.running:
            waits["delete"] = gone
        kept = {key: value for key, value in keys.items() if self.running or key not in gone.split(",")}
        top = {**kept, **{key: value for key, value in new.items() if key not in waits}}
        raw = pct.parse_conf(self.file.read_text()).raw if self.file.exists() else ()
        lines = [f"{key}: {value}" for key, value in sorted(top.items())] + [f"{key}: {value}" for key, value in raw]
        waiting = {**(sections["pve:pending"].keys if "pve:pending" in sections else {}), **waits}
        if waiting:
            lines += ["", "[pve:pending]", *(f"{key}: {value}" for key, value in sorted(waiting.items()))]
        self.file.write_text("".join(f"{line}\n" for line in lines))


def settled(node: Node, spec: ContainerSpec) -> list[str]:
    """Carry out the plan; then there is nothing to do."""
    container = Container(Pct(200), spec)
    done = [step for step in container.plan(node.known(container)) if isinstance(step, Change)]
    for step in done:
        for action in step.actions:
            node.act(action)
    left = [step for step in container.plan(node.known(container)) if isinstance(step, Change)]
    assert left == []
    return [step.subject for step in done]


def test_a_container_is_made_changed_while_it_runs_and_each_time_nothing_is_left(tmp_path: Path):
    node = Node(tmp_path)
    assert settled(node, SPEC) == ["container pct:200", "lxc. lines of pct:200", "state of pct:200"]
    assert settled(node, SPEC) == []
    assert settled(node, replace(SPEC, cores=16, autostart=False)) == ["configuration of pct:200"]

    fewer = replace(SPEC, cores=16, autostart=False, gpus=(0,), nesting=False, shm_gib=None, raw=())
    assert settled(node, fewer) == ["configuration of pct:200", "state of pct:200"]
    conf = pct.parse_conf(node.file.read_text())
    given = {each["path"] for each in conf.numbered("dev").values()}
    assert "/dev/nvidia1" in given  # GPU 0 is the one in the first slot
    assert "/dev/nvidia0" not in given
    assert conf.keys["features"] == "nesting=0"

    image = replace(fewer, driver="image", shm_gib=16)
    assert settled(node, image) == ["lxc. lines of pct:200", "state of pct:200"]
    sizes = [value for _, value in pct.parse_conf(node.file.read_text()).raw if "dev/shm" in value]
    assert len(sizes) == 1
    assert "size=16g" in sizes[0]


def test_a_mount_made_writable_keeps_its_place_and_what_else_was_said_of_it(tmp_path: Path):
    node = Node(tmp_path)
    node.file.write_text("mp3: /srv/models,mp=/models/,ro=1,backup=0\nonboot: 1\nunprivileged: 1\n")
    assert settled(node, ContainerSpec("x", mounts=(Mount("/srv/models", "/models"),)))
    assert pct.parse_conf(node.file.read_text()).keys["mp3"] == "/srv/models,mp=/models,backup=0"
