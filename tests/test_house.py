"""The house's own rules: who may import whom, no shell strings, files one can read in one go."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "dflash"
FILES = sorted(PACKAGE.rglob("*.py"))

SHARED = {"errors", "progress", "finding", "atomic", "document", "validation"}
"""Modules of no room, which every room may use."""

MAY_USE = {
    "hosts": set(),
    "environments": {"hosts"},
    "provision": {"hosts", "environments"},
    "images": {"hosts", "environments"},
    "compilation": {"hosts", "environments"},
    "model": {"compilation"},
    "training": {"model", "compilation"},
    "pipeline": {"hosts", "environments", "provision", "compilation", "model", "training"},
}
"""Data flows down: which rooms a room may import. Nobody imports pipeline."""


def imports(path: Path) -> set[str]:
    """The dflash rooms and modules that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "dflash" else [f"dflash.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("dflash.")}
    return found


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


@pytest.mark.parametrize("room", MAY_USE)
def test_a_room_imports_only_the_rooms_below_it(room: str):
    for path in sorted((PACKAGE / room).rglob("*.py")):
        others = imports(path) - {room} - SHARED
        assert others <= MAY_USE[room], f"{name_of(path)} imports {sorted(others - MAY_USE[room])}"


def test_every_room_has_its_rules():
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert rooms == set(MAY_USE)


RUNNERS = {
    "run",
    "Popen",
    "call",
    "check_call",
    "check_output",
    "exec_command",
    "execvp",
    "execv",
    "create_subprocess_exec",
}
PROGRAMS = {"sh", "bash", "dash", "zsh", "tcsh", "fish", "su", "ssh", "python3", "perl"}


def is_made_up(node: ast.AST) -> bool:
    """Whether an expression is a string made of parts: an f-string, +, %, format, join or replace."""
    if isinstance(node, ast.JoinedStr):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        return any(isinstance(side, ast.JoinedStr | ast.Constant) for side in (node.left, node.right))
    makers = {"format", "join", "replace", "encode"}
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in makers


def shell_strings(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, what) of everything that could paste a value into a command."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "shell":
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                found.append((node.value.lineno, "shell="))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            if node.attr in {"system", "popen"}:
                found.append((node.lineno, f"os.{node.attr}"))
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in {"getoutput", "getstatusoutput", "create_subprocess_shell"}:
                found.append((node.lineno, name))
            elif name in RUNNERS and node.args and is_made_up(node.args[0]):
                found.append((node.lineno, f"{name}() of a string made of parts"))
        elif isinstance(node, ast.List | ast.Tuple):
            words = [getattr(each, "value", None) for each in node.elts]
            for place, word in enumerate(words[:-1]):
                option = isinstance(word, str) and re.fullmatch("-[a-zA-Z]*[ce]", word)
                if option and PROGRAMS & set(words[:place]) and is_made_up(node.elts[place + 1]):
                    found.append((node.lineno, f"a program for {words[0]} made of parts"))
    return found


THE_LINE = "dflash/hosts/sshchannel.py"
"""Joins the one constant line for a login shell from words of which none needs quoting (test_chain.py)."""


@pytest.mark.parametrize("path", [*FILES, *REPOSITORY.glob("tasks*.py")], ids=name_of)
def test_nothing_is_pasted_into_a_command(path: Path):
    found = shell_strings(ast.parse(path.read_text()))
    allowed = ["exec_command() of a string made of parts"] if name_of(path) == THE_LINE else []
    assert [what for _, what in found] == allowed, [f"{name_of(path)}:{line}: {what}" for line, what in found]


@pytest.mark.parametrize(
    "text",
    [
        "subprocess.run(command, shell=True)",
        "subprocess.run(command, shell=choice)",
        "os.system('true')",
        "subprocess.getoutput('true')",
        "subprocess.run(f'rm {path}')",
        "channel.exec_command('rm ' + path)",
        "subprocess.Popen('rm %s' % path)",
        "connection.run('rm {}'.format(path))",
        "connection.run(['sh', '-c', f'rm {path}'])",
        "connection.run(('bash', '-lc', 'rm ' + path))",
        "words = ['ssh', host, 'sh', '-c', 'rm {}'.format(path)]",
    ],
)
def test_what_would_paste_into_a_command_is_found(text: str):
    assert len(shell_strings(ast.parse(text))) == 1


def test_the_handshake_pastes_only_a_nonce_of_hexadecimal_digits():
    from dflash.hosts.handshake import script

    assert script("dflash-0123456789abcdef").count(b"dflash-0123456789abcdef") == 2
    source = (PACKAGE / "hosts" / "handshake.py").read_text()
    assert source.count("script(nonce)") == 1
    assert 'nonce = f"dflash-{secrets.token_hex(8)}"' in source


FAR = [f"hosts/{name}" for name in ("agent", "keeper", "transfer", "unpacking")]
FAR += [
    f"environments/{name}"
    for name in ("bootstrap", "far", "generations", "installed", "making", "snapshot", "surroundings")
]


@pytest.mark.parametrize("name", FAR)
def test_what_is_sent_to_the_far_end_is_python_3_8(name: str):
    ast.parse((PACKAGE / f"{name}.py").read_text(), feature_version=(3, 8))


AGENT = "dflash/hosts/agent.py"
"""Sent to the far end as it is, so it can not be split."""


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_can_be_read_in_one_go(path: Path):
    lines = len(path.read_text().splitlines())
    limit = 520 if name_of(path) == AGENT else 330
    assert lines <= limit, f"{name_of(path)} has {lines} lines: split it along its nouns"


def test_the_agent_imports_nothing_that_a_bare_python_lacks():
    """Debian's python3-minimal: no json, no typing that runs, no ctypes but behind a suppressed ImportError."""
    allowed = {"__future__", "contextlib", "errno", "os", "pwd", "selectors", "signal", "struct", "subprocess", "sys"}
    tree = ast.parse((REPOSITORY / AGENT).read_text())
    top = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    top |= {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert top <= allowed | {"time"}


def test_the_trainer_imports_with_nothing_but_its_own_needs():
    """A GPU image has torch, numpy, transformers, safetensors and PyYAML; the tools for the desk are not there.
    (Kernels need Triton, which comes with torch where there is CUDA, and nothing imports them elsewhere.)"""
    program = """
import importlib, pkgutil, sys
for absent in ("pydantic", "invoke", "rich", "psutil", "tenacity", "uv", "fabric"):
    sys.modules[absent] = None
import dflash.model, dflash.training
for room in (dflash.model, dflash.training):
    for module in pkgutil.iter_modules(room.__path__):
        if module.name != "kernels":
            importlib.import_module(f"{room.__name__}.{module.name}")
assert "triton" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-B", "-c", program], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_package_is_not_shadowed_by_a_folder_of_data():
    for folder in ("docker", "envs", "pipelines", "docs"):
        assert not (REPOSITORY / folder / "__init__.py").exists()
