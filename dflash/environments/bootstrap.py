"""Make `.venv` from `envs/local`, with the standard library alone: `./inv` runs it when nothing is installed.

    python bootstrap.py supported           exit 0 when this interpreter can carry .venv, else say why not
    python bootstrap.py current [PYTHON]    exit 0 when this is the interpreter of a finished, current .venv
    python bootstrap.py build               make .venv with this interpreter

A finished `.venv` has a stamp, which says what it was made from. The stamp is removed first and written last,
so a build that was killed is seen and done again. The build is in place: a virtual environment holds absolute
paths (scripts' first lines, pyvenv.cfg), so one built aside and renamed would point at a folder that is gone.
Two builders are kept apart by a lock that the kernel drops with its last holder, so none is ever stale.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and sys.version_info < (3, 11):  # an old interpreter gets this far only
    sys.stdout.write("Python {}.{} is too old\n".format(*sys.version_info[:2]))
    raise SystemExit(3)

import ast
import fcntl
import hashlib
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
LOCK = os.path.join(ROOT, "envs", "local", "requirements.lock")
SPEC = os.path.join(ROOT, "envs", "local", "env.yaml")
STAMP = os.path.join(VENV, "dflash-stamp")
RECORDS = os.path.join(VENV, "dflash-records")

ROOM = 1400 * 2**20  # bytes; a finished .venv takes 1.2 GB

# Imported once at the end of a build, so that their bytecode is there: later processes take 6 s, not 13 s, and verbs
# that do without torch 0.5 s, not 0.7 s.
# Where PYTHONDONTWRITEBYTECODE is set no later process would ever write it.
WARM = """
import torch._dynamo, torch._inductor.compile_fx
from transformers import Qwen3ForCausalLM
import docker, fabric, invoke.program, pydantic.dataclasses, rich.emoji, rich.live, rich.progress, rich.table, tenacity
pydantic.TypeAdapter(int)
"""


class Failed(Exception):
    """The environment can not be made. `str()` is one line: what failed, and what to do."""


def digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stamp() -> str:
    """What a `.venv` made by this interpreter now, at this place, from these files would be stamped with."""
    version = ".".join(map(str, sys.version_info[:3]))
    return f"python {version}\nlock {digest(LOCK)}\nspec {digest(SPEC)}\nplace {VENV}\n"


def declared(key: str) -> str:
    """One plain value of env.yaml. YAML is not in the standard library; the whole file is read by spec.py."""
    with open(SPEC, encoding="utf-8") as file:
        match = re.search(rf'^{key}: *"?([^"#\n]*?)"? *$', file.read(), re.MULTILINE)
    if match is None:
        raise Failed(f"{SPEC} does not declare `{key}`; restore the file from git")
    return match.group(1)


def in_range(version: tuple[int, int], wanted: str) -> bool:
    """Is (major, minor) within a range such as `>=3.11,<3.14`?"""
    tests = {">=": lambda a, b: a >= b, "<": lambda a, b: a < b, "==": lambda a, b: a == b}
    parts = re.findall(r"(>=|<|==) *(\d+)\.(\d+)", wanted)
    return all(tests[sign](version, (int(major), int(minor))) for sign, major, minor in parts)


def why_unsupported() -> str | None:
    wanted = declared("python")
    mine = f"Python {sys.version_info[0]}.{sys.version_info[1]} ({sys.executable})"
    if not in_range(sys.version_info[:2], wanted):
        return f"{mine} is not in the range {wanted} of envs/local/env.yaml"
    try:
        import ensurepip  # noqa: F401  # Debian ships venv without it unless python3-venv is there
        import venv  # noqa: F401
    except ImportError:
        return f"{mine} can not make virtual environments; install its venv module (Debian: python3-venv)"
    return None


def is_current(python: str | None) -> bool:
    if python is not None:
        import subprocess

        ask = "import sys; print(sys.version_info[:3])"
        asked = subprocess.run([python, "-ISBc", ask], capture_output=True)
        if asked.stdout.decode().strip() != str(sys.version_info[:3]):
            return False
    with open(STAMP, encoding="utf-8") as file:
        return file.read() == stamp()


def block_of(lock: str, name: str) -> str | None:
    """The lines of one package in a lock: its pin and its hashes."""
    match = re.search(rf"^{re.escape(name)}==.*\n(?:[ \t]+.*\n?)*", lock, re.MULTILINE)
    return match.group() if match else None


def pip_settings(listing: str) -> dict[str, str]:
    """`pip config list` -> settings. As in pip, [install] beats [global] and the environment beats both."""
    ranked: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        match = re.fullmatch(r"(global|install|:env:)\.\.?([a-z-]+)=(.*)", line.strip())
        if match is None:
            continue
        rank = ("global", "install", ":env:").index(match.group(1))
        if rank >= ranked.get(match.group(2), (0, ""))[0]:
            ranked[match.group(2)] = (rank, str(ast.literal_eval(match.group(3))))
    return {key: value for key, (_, value) in ranked.items()}


def uv_environment(settings: dict[str, str], environ: dict[str, str]) -> dict[str, str]:
    """pip's settings as uv's variables, since uv does not read pip's; a variable that is already set stays.

    In the environment, not in arguments: an index address may hold a password, and arguments are public.
    """
    words = {key: " ".join(value.split()) for key, value in settings.items()}
    translated = {
        "UV_INDEX_URL": words.get("index-url"),
        "UV_EXTRA_INDEX_URL": words.get("extra-index-url"),
        "UV_FIND_LINKS": ",".join(settings.get("find-links", "").split()),
        "UV_INSECURE_HOST": words.get("trusted-host"),
        "UV_HTTP_TIMEOUT": words.get("timeout") or words.get("default-timeout"),
        "SSL_CERT_FILE": words.get("cert"),
        "HTTP_PROXY": words.get("proxy"),
        "HTTPS_PROXY": words.get("proxy"),
        # pip takes the best of all indexes where uv stops at the first. The lock's hashes, not the index,
        # decide which file is right, so this opens no door.
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        # Not hard links: a file edited in .venv would be edited in uv's cache and in every other environment,
        # and making .venv again would bring the damage back. A copy costs 2 s.
        "UV_LINK_MODE": "copy",
    }
    fresh = {key: value for key, value in translated.items() if value and key not in environ}
    if "UV_DEFAULT_INDEX" in environ:
        fresh.pop("UV_INDEX_URL", None)
    return {**environ, **fresh}


def say(line: str) -> None:
    sys.stderr.write(f"inv: {line}\n")
    sys.stderr.flush()


class Builder:
    """One build. Every child inherits the lock, open as `held`, so that no other build starts beside one."""

    def __init__(self, held: int) -> None:
        self.held = held
        # `-I` does not reach children, and these would lead an installer astray.
        hidden = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
        self.environ = {key: value for key, value in os.environ.items() if key not in hidden}

    def call(self, *words: str, quiet: bool = False, stdin: str = "") -> str | None:
        """Run a child: its standard output, or None when it failed. It complains on stderr, unless quiet."""
        import subprocess

        done = subprocess.run(
            words,
            cwd=ROOT,
            env=self.environ,
            pass_fds=(self.held,),
            input=stdin,
            text=True,
            capture_output=True,
        )
        if done.returncode and not quiet:  # only now: a child that Ctrl-C stopped has a traceback to say
            sys.stderr.write(done.stdout + done.stderr)  # venv complains on standard output
        return None if done.returncode else done.stdout

    def must(self, failure: str, *words: str) -> None:
        if self.call(*words) is None:
            raise Failed(failure)

    def build(self) -> None:
        with open(LOCK, encoding="utf-8") as file:
            lock = file.read()
        uv = block_of(lock, "uv")
        if uv is None:
            raise Failed(f"{LOCK} has no uv in it; make the lock again (CONTRIBUTING.md)")
        if os.path.exists(STAMP):
            os.remove(STAMP)
        self.must(
            f"no virtual environment could be made in {VENV}; look at the lines above",
            *(sys.executable, "-IB", "-m", "venv", "--clear", VENV),
        )
        pip = (PYTHON, "-I", "-m", "pip", "--disable-pip-version-check")
        only_uv = os.path.join(VENV, "uv.txt")
        with open(only_uv, "w", encoding="utf-8") as file:
            file.write(uv)
        self.must(
            "pip could not install uv as the lock pins it; can it reach a package index (`pip config list`)?",
            *(*pip, "install", "-qq", "--require-hashes", "--no-deps", "-r", only_uv),
        )
        os.remove(only_uv)
        settings = pip_settings(self.call(*pip, "config", "list", quiet=True) or "")
        self.environ = uv_environment(settings, self.environ)
        no_index = settings.get("no-index", "0").lower() in ("1", "true", "yes", "on")
        self.install(lock, ["--no-index"] if no_index else [])

    def install(self, lock: str, flags: list[str]) -> None:
        uv = os.path.join(VENV, "bin", "uv")
        common = ["--python", PYTHON, "--require-hashes", *flags]
        torch = block_of(lock, "torch")
        if torch is not None and "--no-index" not in flags:
            # pip's own places first. A public index has only a CUDA build of this version, which the pin and
            # the hashes both refuse; uv knows by name where CPU builds are.
            probe = [uv, "pip", "install", "--quiet", "--dry-run", "--no-deps", *common, "-r", "-"]
            if self.call(*probe, quiet=True, stdin=torch) is None:
                common += ["--torch-backend", declared("torch_backend")]
        count = len(re.findall(r"^[a-z0-9][\w.-]*==", lock, re.MULTILINE))
        say(f"installing up to {count} packages, each checked against the lock's hashes")
        self.must(
            "the packages could not be installed as envs/local/requirements.lock pins them; "
            "uv's lines above name the package and the reason",
            *(uv, "pip", "sync", "--quiet", *common, LOCK),
        )
        if torch is not None:
            say("compiling bytecode")
            # Not fatal: `./inv check` imports torch as well, and explains.
            self.environ.pop("PYTHONDONTWRITEBYTECODE", None)
            self.call(PYTHON, "-I", "-c", WARM)


def write_records() -> None:
    """Remember each distribution's RECORD: `verify` then sees a package that was installed again by hand."""
    lines = []
    for folder, folders, files in os.walk(os.path.join(VENV, "lib")):
        if folder.endswith(".dist-info"):
            folders.clear()
            if "RECORD" in files:
                path = os.path.join(folder, "RECORD")
                lines.append(f"{digest(path)}  {os.path.relpath(path, VENV)}\n")
        elif os.path.basename(folder) == "site-packages":
            folders[:] = [name for name in folders if name.endswith(".dist-info")]
    with open(RECORDS, "w", encoding="utf-8") as file:
        file.writelines(sorted(lines))


def write_stamp() -> None:
    """Last of all, and in one step: from here on `.venv` counts as finished."""
    write_records()
    with open(STAMP + ".new", "w", encoding="utf-8") as file:
        file.write(stamp())
        file.flush()
        os.fsync(file.fileno())
    os.replace(STAMP + ".new", STAMP)


def free_bytes() -> int:
    """Room where `.venv` is made. Installers tell a full disk in words of their own, and a missing index alike."""
    found = os.statvfs(ROOT)
    return found.f_bavail * found.f_frsize


def build() -> None:
    import time

    started = time.monotonic()
    held = os.open(os.path.join(ROOT, ".venv.lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another ./inv is making .venv; waiting for it")
        fcntl.flock(held, fcntl.LOCK_EX)
    builder = Builder(held)
    if os.path.exists(STAMP) and builder.call(PYTHON, "-ISB", __file__, "current", quiet=True) is not None:
        return
    version = ".".join(map(str, sys.version_info[:3]))
    say(f"making .venv with Python {version} from envs/local/requirements.lock")
    builder.build()
    write_stamp()
    say(f".venv is ready ({time.monotonic() - started:.0f} s)")


def main(words: list[str]) -> int:
    if words[:1] == ["supported"]:
        reason = why_unsupported()
        if reason:
            print(reason)
        return 3 if reason else 0
    if words[:1] == ["current"]:
        return 0 if is_current(words[1] if len(words) > 1 else None) else 1
    try:
        build()
    except Failed as failure:
        if (free := free_bytes()) < ROOM:
            sys.stderr.write(f"error: {VENV}: {free >> 20} MiB are free, {ROOM >> 20} are needed; free space there\n")
            return 5
        sys.stderr.write(f"error: {failure}\n")
        return 3
    except OSError as failure:
        cure = "this folder has to be writable, with room for .venv"
        sys.stderr.write(f"error: {failure.filename or VENV}: {failure.strerror or failure}; {cure}\n")
        return 5
    except KeyboardInterrupt:
        sys.stderr.write("error: stopped; the next ./inv makes .venv again\n")
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
