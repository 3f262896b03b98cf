"""Facts of containers, on what real tools printed; and the scripts that read and write, on this machine."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dflash.document import load
from dflash.hosts.chain import parse_chain
from dflash.provision.fact import Fact, Facts, Output
from dflash.provision.facts import idmap, inside, lxc, nodes, pct
from dflash.provision.operations import writing
from dflash.provision.operations.pct import EDIT

DATA = Path(__file__).parents[1] / "data" / "facts" / "containers.yaml"
CASES = [pytest.param(case, id=f"{case.get('fact') or case['make']}: {case['name']}") for case in load(DATA).data]
MODULES = ("nodes", "driver", "idmap", "lxc", "pct", "incus", "docker", "inside")


def fact_of(case: dict[str, Any]) -> Fact[Any]:
    module, _, name = (case.get("fact") or case["make"]).partition(".")
    found = getattr(importlib.import_module(f"dflash.provision.facts.{module}"), name)
    if "make" in case:
        arguments = case["arguments"]
        found = found(*(parse_chain(each).hops[0] if module == "incus" else each for each in arguments))
    assert isinstance(found, Fact)
    return found


def plain(value: Any) -> Any:
    """As YAML has it; of a file, not its text beside what is read from it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: plain(each) for name, each in fields.items() if name != "text"}
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, tuple) else value


@pytest.mark.parametrize("case", CASES)
def test_a_value_is_read_from_what_was_printed(case: dict[str, Any]):
    fact = fact_of(case)
    known = Facts({fact: Output(**{"status": 0, **case["output"]})})
    assert plain(known[fact]) == case["value"]


FACTS = {fact.name: fact for fact in (fact_of(case.values[0]) for case in CASES)}


def test_every_fact_has_a_recorded_output():
    loaded = [importlib.import_module(f"dflash.provision.facts.{module}") for module in MODULES]
    assert {each for module in loaded for each in vars(module).values() if isinstance(each, Fact)} <= {*FACTS.values()}


@pytest.mark.parametrize("fact", FACTS.values(), ids=FACTS)
@pytest.mark.parametrize("output", [Output(127), Output(124), Output(1, "\0\n:,/x 1\n[]\n", "?"), Output(0, "\n[{}]")])
def test_no_parser_raises_whatever_was_printed(fact: Fact[Any], output: Output):
    fact.parse(output)


def ran(fact: Fact[Any], **more: Any) -> Output:
    done = subprocess.run(fact.argv, capture_output=True, text=True, check=False, **more)
    return Output(done.returncode, done.stdout, done.stderr)


def test_nodes_of_this_machine_are_read_as_they_are():
    fact = nodes.nodes(("/dev/null", "/dev/zero", "/dev/not-there", "/dev/shm"))
    found = fact.parse(ran(fact))
    assert (found["/dev/null"].major, found["/dev/null"].minor, found["/dev/null"].mode) == (1, 3, 0o666)
    assert found["/dev/zero"].minor == 5
    assert not {"/dev/not-there", "/dev/shm"} & set(found)
    assert nodes.MAJORS.parse(ran(nodes.MAJORS))["mem"] == 1


def test_a_node_that_is_named_by_a_link_has_the_numbers_of_what_the_link_leads_to(tmp_path: Path):
    link = tmp_path / "by-path"
    link.symlink_to("/dev/null")
    fact = nodes.nodes((str(link),))
    found = fact.parse(ran(fact))[str(link)]
    assert (found.major, found.minor, found.mode) == (1, 3, 0o666)


def test_the_two_nodes_that_cuda_needs_are_asked_for_even_where_there_are_none():
    opens = inside.OPENS.parse(ran(inside.OPENS))
    assert {"/dev/nvidiactl", "/dev/nvidia-uvm"} <= set(opens)
    assert all(said in ("OK", "ENOENT", "EACCES", "EPERM", "EIO", "ENXIO") for said in opens.values())
    assert ran(inside.LIBRARIES).status == 0


def test_a_range_of_ids_must_hold_a_whole_container():
    ranges = idmap.parse_ranges(Output(0, "root:1000:10\nops:2000:65536\nroot:300000:65536\n"))
    assert idmap.first_of(ranges) == idmap.Range("root", 300000, 65536)
    assert idmap.first_of(ranges[:2]) is None


def test_a_block_is_replaced_and_what_a_person_wrote_stays_but_for_what_speaks_against_it():
    text = "# mine\nlxc.net.0.type = none\nlxc.mount.entry = /old data none bind 0 0\nlxc.environment = A=1\n"
    block = [
        ("lxc.net.0.type", "veth"),
        ("lxc.mount.entry", "/srv data none bind 0 0"),
        ("lxc.environment", "B=2"),
    ]
    made = lxc.merged(text, block, "# begin", "# end")
    assert made == (
        "# mine\nlxc.environment = A=1\n"
        "# begin\nlxc.net.0.type = veth\nlxc.mount.entry = /srv data none bind 0 0\nlxc.environment = B=2\n# end\n"
    )
    assert lxc.merged(made, block, "# begin", "# end") == made
    assert lxc.merged(made, [], "# begin", "# end") == "# mine\nlxc.environment = A=1\n"


def test_a_block_stays_where_it_is_and_one_without_an_end_is_not_guessed_at():
    text = "lxc.uts.name = a\n# begin\nlxc.start.auto = 1\n# end\nlxc.environment = A=1\n"
    assert lxc.merged(text, [("lxc.start.auto", "1")], "# begin", "# end") == text
    assert lxc.merged(text, [("lxc.start.auto", "0")], "# begin", "# end") == text.replace("auto = 1", "auto = 0")
    with pytest.raises(ValueError, match="no line '# end' comes after '# begin'"):
        lxc.merged(text.replace("# end\n", ""), [("lxc.start.auto", "1")], "# begin", "# end")


def test_an_empty_value_clears_what_came_before():
    entries = lxc.entries("lxc.cap.drop = a\nlxc.cap.drop =\nlxc.cap.drop = b\n")
    assert lxc.values(entries, "lxc.cap.drop") == ("b",)
    assert lxc.allowed([("lxc.cgroup2.devices.allow", "c 195:* rwm"), ("lxc.cgroup2.devices.allow", "c *:* m")]) == (
        (195, None),
    )


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("/dev/nvidia0,gid=44,mode=0666", {"volume": "/dev/nvidia0", "gid": "44", "mode": "0666"}),
        ("name=eth0,bridge=vmbr0", {"name": "eth0", "bridge": "vmbr0"}),
        ("", {}),
    ],
)
def test_properties_are_written_as_they_are_read(text: str, values: dict[str, str]):
    assert pct.properties(text) == values
    assert pct.written(values) == text


CONF = """\
#notes
arch: amd64
lxc.mount.entry:   /dev/nvidia0 dev/nvidia0 none bind,optional,create=file
unprivileged: 1
lxc.cap.drop: sys_rawio

[before]
arch: amd64
lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file
"""
OLD = "lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file"
NEW = "lxc.mount.entry: tmpfs dev/shm tmpfs size=1g 0 0"


def edited(path: Path, stdin: str) -> str:
    count = str(len(stdin.splitlines()))
    subprocess.run(["sh", "-c", EDIT, "sh", str(path), count], input=stdin, text=True, check=True)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    return path.read_text()


def test_lines_go_in_and_out_above_the_first_section_and_below_it_all_stays(tmp_path: Path):
    path = tmp_path / "200.conf"
    path.write_text(CONF)
    head, _, tail = CONF.partition("[")
    made = edited(path, f"-{OLD}\n+{NEW}\n+lxc.environment: A=1: b\n")
    kept = "".join(f"{line}\n" for line in head.splitlines() if line and "nvidia0" not in line)
    assert made.startswith(kept)
    assert made.endswith(f"{NEW}\nlxc.environment: A=1: b\n\n[{tail}")
    conf = pct.parse_conf(made)
    assert conf.raw[-2:] == (("lxc.mount.entry", NEW.partition(": ")[2]), ("lxc.environment", "A=1: b"))
    assert conf.sections == pct.parse_conf(CONF).sections
    taken = pct.parse_conf(edited(path, f"-{NEW}\n-lxc.environment: A=1: b\n"))
    assert taken.raw == (("lxc.cap.drop", "sys_rawio"),)


def test_lines_are_put_at_the_end_of_a_file_without_sections(tmp_path: Path):
    path = tmp_path / "200.conf"
    path.write_text("arch: amd64\n")
    assert edited(path, f"+{NEW}\n") == f"arch: amd64\n{NEW}\n"


@pytest.mark.parametrize("came", ["", "+lxc.environment: A=1\n", "+lxc.environment: A=1\n+lxc.env"])
def test_a_file_stays_as_it_is_when_not_all_lines_of_an_edit_came(tmp_path: Path, came: str):
    path = tmp_path / "200.conf"
    path.write_text(CONF)
    done = subprocess.run(["sh", "-c", EDIT, "sh", str(path), "2"], input=came, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (1, "of 2 lines not all came\n")
    assert path.read_text() == CONF
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_is_written_whole_with_the_mode_it_had(tmp_path: Path):
    path = tmp_path / "config"
    path.write_text("old")
    path.chmod(0o640)
    write = ["sh", "-c", writing.WRITE, "sh", str(path), "0644"]
    subprocess.run([*write, "4"], input=b"new\n", check=True)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new\n", 0o640)
    assert [*tmp_path.iterdir()] == [path]
    failed = subprocess.run([*write, "100"], input=b"half of it", capture_output=True)
    assert failed.returncode != 0
    assert path.read_text() == "new\n"
    assert [*tmp_path.iterdir()] == [path]
