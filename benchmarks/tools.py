"""`./inv bench tools`: our connection next to what people use instead, on the same machine, in the same run.

Two questions, both put to the lab's real sshd and a real LXC container that the stand-in for `pct` leads into:

* How many of 60 argument lists full of shell characters reach a program in the container changed?
* How long does the command `true` take, once the way there is open?

The other tools run `true` on the SSH host; ours runs it in the container behind it, which is one hop more. All log in
as users whose rc files are the distribution's, so that nobody pays for what this machine's root has in its own.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.hosts import _median
from dflash.hosts.chain import Ssh, parse_chain
from dflash.hosts.reach import reach
from dflash.hosts.sshchannel import connect
from tests.lab.lxc import container, install_pct
from tests.lab.service import CACHE
from tests.lab.sshd import Sshd, sshd, user_of

CONTAINER = "733"
MANGLED_CHAIN = f"ssh:lab-tcsh/sudo/pct:{CONTAINER}"
TIMED_CHAIN = f"ssh:lab-bash/sudo/lxc:{CONTAINER}"
HOST = "lab-bash"

ANSIBLE, PYINFRA = ("ansible-core", "2.19.14"), ("pyinfra", "3.10.0")
ROUNDS = 3
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# No character of it is special between single quotes inside double quotes, so only the words after it are at stake.
PROGRAM = "import os, sys; print([*map(os.fsencode, sys.argv[1:])])"
ORDINARY = ("alpha", "beta-2", "key=value", "naïve", " ", "two words")
# Nothing here writes a file or names another program than `id`: a mangled line does run.
HOSTILE = ("'", '"', "$(id)", "`id`", "$HOME", "!", "!!", "*", "[a-z]?", "\n", "\\", "\\n", os.fsdecode(b"\xff\xfe"))


def measure() -> dict[str, float]:
    """Start the lab, measure, and stop it. Lists that came out wrong of 60; milliseconds, medians."""
    ansible, pyinfra = _installed(*ANSIBLE), _installed(*PYINFRA)
    with sshd() as server, container(CONTAINER), _pct_through_sudo(), tempfile.TemporaryDirectory() as folder:
        reach(parse_chain("ssh:lab")).close()  # writes the host key down, for every tool
        figures = {**_mangled(server), **_open_times(server)}
        if ansible:
            figures |= _ansible_times(server, ansible, Path(folder))
        if pyinfra:
            figures["pyinfra_ms"] = _pyinfra_time(server, pyinfra, Path(folder))
    _print_versions(figures)
    return figures


# --- what arrives


def _mangled(server: Sshd) -> dict[str, float]:
    lists = _hostile_lists(60)
    with _master(server, HOST) as bash, _master(server, "lab-tcsh") as tcsh:
        naive = _changed(lists, lambda argv: _output([*bash, _by_hand(argv)]))
        careful = _changed(lists, lambda argv: _output([*tcsh, _by_shlex(argv)]))
    with reach(parse_chain(MANGLED_CHAIN)) as connection:
        ours = _changed(lists, lambda argv: connection.run(["python3", "-c", PROGRAM, *argv]).stdout)
    counts = {"nested_quoting": naive, "shlex_tcsh": careful, "dflash": ours}
    return {f"mangled_{name}_of_60": float(count) for name, count in counts.items()}


def _hostile_lists(count: int) -> list[list[str]]:
    """One to three words each, of one to four pieces; always the same. At least one piece of a list is hostile."""
    chance = random.Random(60)
    lists: list[list[str]] = []
    while len(lists) < count:
        pieces = [[chance.choice(ORDINARY + HOSTILE) for _ in range(chance.randint(1, 4))] for _ in range(3)]
        pieces = pieces[: chance.randint(1, 3)]
        if any(piece in HOSTILE for word in pieces for piece in word):
            lists.append(["".join(word) for word in pieces])
    return lists


def _by_hand(argv: Sequence[str]) -> str:
    """Each layer's line between double quotes; a word between single quotes, or double ones if it has a single one."""
    words = " ".join(f'"{word}"' if "'" in word else f"'{word}'" for word in argv)
    command = f"python3 -c '{PROGRAM}' {words}"
    return f'sudo -n pct exec {CONTAINER} -- bash -c "{command}"'


def _by_shlex(argv: Sequence[str]) -> str:
    """Every layer's line by shlex.join."""
    command = shlex.join(["python3", "-c", PROGRAM, *argv])
    return shlex.join(["sudo", "-n", "pct", "exec", CONTAINER, "--", "bash", "-c", command])


def _changed(lists: Sequence[Sequence[str]], send: Callable[[Sequence[str]], bytes]) -> int:
    """How many lists the far program did not get as they are. A harmless one must arrive, or the lab is at fault."""
    harmless = ["plain", "words"]
    wrong = [argv for argv in (harmless, *lists) if send(argv) != f"{[*map(os.fsencode, argv)]}\n".encode()]
    if harmless in wrong:
        raise RuntimeError("the lab does not even carry two plain words")
    return len(wrong)


def _output(command: Sequence[str]) -> bytes:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60).stdout


@contextlib.contextmanager
def _pct_through_sudo() -> Iterator[None]:
    """Sudo resets PATH: have it find the stand-in for pct, for the lab's users alone."""
    rule = Path("/etc/sudoers.d/dflash-lab-pct")
    with tempfile.TemporaryDirectory(prefix="dflash-pct-") as folder:
        install_pct(Path(folder))
        try:
            for_users = f"Defaults:{user_of('bash')},{user_of('tcsh')}"
            rule.write_text(f'{for_users} secure_path="{folder}:{SYSTEM_PATH}"\n')
            rule.chmod(0o440)
            yield
        finally:
            rule.unlink(missing_ok=True)


# --- how long `true` takes


def _open_times(server: Sshd) -> dict[str, float]:
    """Over what is open already: our chain, Fabric's Connection (told to leave our stdin), an OpenSSH master."""
    with reach(parse_chain(TIMED_CHAIN)) as ours:
        dflash = _median(lambda: ours.run(["true"]), 1000)
    with connect(Ssh(HOST)) as fabric:
        run = _median(lambda: fabric.run("true", hide=True, in_stream=False), 30)
    with _master(server, HOST) as command:
        master = _median(lambda: _quietly([*command, "true"]), 30)
    times = {"dflash_ms": dflash, "fabric_run_ms": run, "controlmaster_ms": master}
    return {name: round(seconds * 1e3, 2) for name, seconds in times.items()}


def _ansible_times(server: Sshd, programs: Path, folder: Path) -> dict[str, float]:
    """A task of a play, with pipelining and ControlPersist: the module `command`, and `raw`, which needs no Python."""
    control = folder / "ansible"
    options = shlex.join([*_options(server), "-o", "ControlMaster=auto", "-o", "ControlPersist=60s"])
    (folder / "ansible.cfg").write_text(
        f"[ssh_connection]\npipelining = true\ncontrol_path = {control}\nssh_args = {options}\n"
    )

    def play(module: str, tasks: int) -> None:
        task = f"    - ansible.builtin.{module}: 'true'\n"
        (folder / "play.yaml").write_text("- hosts: all\n  gather_facts: false\n  tasks:\n" + task * tasks)
        _quietly([str(programs / "ansible-playbook"), "-i", f"{HOST},", "play.yaml"], folder)

    try:
        return {
            "ansible_ms": _per_step(lambda tasks: play("command", tasks), 40),
            "ansible_raw_ms": _per_step(lambda tasks: play("raw", tasks), 100),
        }
    finally:
        exit_master = ["ssh", *_options(server), "-o", f"ControlPath={control}", "-O", "exit", "-q", HOST]
        subprocess.run(exit_master, check=False, capture_output=True)


def _pyinfra_time(server: Sshd, programs: Path, folder: Path) -> float:
    """An operation `server.shell` of a deploy."""
    data = {"ssh_config_file": str(server.home / ".ssh" / "config"), "ssh_known_hosts_file": str(server.known_hosts)}
    (folder / "inventory.py").write_text(f"hosts = [({HOST!r}, {data!r})]\n")

    def deploy(operations: int) -> None:
        steps = f'for _ in range({operations}):\n    server.shell(commands=["true"])\n'
        (folder / "deploy.py").write_text(f"from pyinfra.operations import server\n\n{steps}")
        _quietly([str(programs / "pyinfra"), "-y", "inventory.py", "deploy.py"], folder)

    return _per_step(deploy, 150)


def _per_step(run: Callable[[int], None], steps: int) -> float:
    """Milliseconds a step: a run of 1 + `steps` less one of a single step, which has the start and the connection."""
    run(1)  # compiles what is imported, and opens Ansible's master
    more = (_median(lambda: run(1 + steps), 1) - _median(lambda: run(1), 1) for _ in range(ROUNDS))
    return round(statistics.median(more) / steps * 1e3, 1)


# --- the tools


def _options(server: Sshd) -> list[str]:
    """OpenSSH looks for its files where the password file says, whatever HOME is."""
    return ["-F", str(server.home / ".ssh" / "config"), "-o", f"UserKnownHostsFile={server.known_hosts}"]


@contextlib.contextmanager
def _master(server: Sshd, host: str) -> Iterator[list[str]]:
    """An OpenSSH master connection, ended afterwards: the words to put before a line for `host`."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["ssh", *_options(server), "-o", f"ControlPath={folder}/c"]
        _quietly([*command, "-o", "ControlMaster=auto", "-o", "ControlPersist=60", host, "true"])
        try:
            yield [*command, host]
        finally:
            _quietly([*command, "-O", "exit", "-q", host])


def _quietly(command: Sequence[str], folder: Path | None = None) -> None:
    """Run, in `folder` and with it as HOME; what it said is shown only when it failed.

    That goes to a file, not a pipe: a master that lives on may hold it.
    """
    home = {"HOME": str(folder), "LC_ALL": "C.UTF-8"} if folder else {}
    with tempfile.TemporaryFile() as said:
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, **home}, stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )
        said.seek(0)
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} ended with {done.returncode}: {said.read().decode(errors='replace')}")


def _installed(package: str, version: str) -> Path | None:
    """The programs of an environment with that package, made once and kept in the cache; None if it can not be."""
    place = CACHE / "tools" / f"{package}-{version}"
    if not (place / "ready").exists():
        install = ["pip", "install", "-q", "--python", str(place / "bin" / "python"), f"{package}=={version}"]
        for words in (["venv", "-q", "--clear", "--python", sys.executable, str(place)], install):
            done = subprocess.run([Path(sys.executable).with_name("uv"), *words], capture_output=True, text=True)
            if done.returncode != 0:
                reason = " ".join(done.stderr.split())
                print(f"{package} {version} is left out, uv can not install it: {reason}", file=sys.stderr)
                return None
        (place / "ready").touch()
    return place / "bin"


def _print_versions(figures: dict[str, float]) -> None:
    open_ssh = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr.split(",")[0]
    ours = [f"{name} {importlib.metadata.version(name)}" for name in ("fabric", "invoke", "paramiko")]
    theirs = [" ".join(tool) for tool, key in ((ANSIBLE, "ansible_ms"), (PYINFRA, "pyinfra_ms")) if key in figures]
    print("; ".join([*ours, open_ssh, *theirs]), file=sys.stderr)
