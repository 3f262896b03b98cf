"""The house's own rules: who may import whom, no shell strings, files one can read in one go."""

import ast
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
    "environments": set(),
    "provision": {"environments"},
    "compilation": set(),
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


@pytest.mark.parametrize("path", [*FILES, REPOSITORY / "tasks.py"], ids=name_of)
def test_nothing_is_pasted_into_a_shell(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg == "shell":
            assert isinstance(node.value, ast.Constant), f"{name_of(path)}:{node.value.lineno} passes shell="
            assert node.value.value is False, f"{name_of(path)}:{node.value.lineno} passes shell=True"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            assert node.attr not in {"system", "popen"}, f"{name_of(path)}:{node.lineno} uses os.{node.attr}"


AGENT = "dflash/hosts/agent.py"
"""Sent to the far end as it is, so it can not be split."""


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_can_be_read_in_one_go(path: Path):
    lines = len(path.read_text().splitlines())
    limit = 480 if name_of(path) == AGENT else 330
    assert lines <= limit, f"{name_of(path)} has {lines} lines: split it along its nouns"


def test_the_agent_imports_nothing_that_a_bare_python_lacks():
    """Debian's python3-minimal: no json, no typing that runs, no ctypes but behind a suppressed ImportError."""
    allowed = {"__future__", "contextlib", "errno", "os", "pwd", "selectors", "signal", "struct", "subprocess", "sys"}
    tree = ast.parse((REPOSITORY / AGENT).read_text())
    top = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    top |= {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert top <= allowed | {"time"}


def test_the_trainer_imports_with_nothing_but_its_own_needs():
    """A GPU image has torch, numpy, transformers, safetensors and PyYAML; the tools for the desk are not there."""
    program = """
import importlib, pkgutil, sys
for absent in ("pydantic", "invoke", "rich", "psutil", "tenacity", "uv", "fabric"):
    sys.modules[absent] = None
import dflash.model, dflash.training
for room in (dflash.model, dflash.training):
    for module in pkgutil.iter_modules(room.__path__):
        importlib.import_module(f"{room.__name__}.{module.name}")
"""
    done = subprocess.run([sys.executable, "-B", "-c", program], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_package_is_not_shadowed_by_a_folder_of_data():
    for folder in ("docker", "envs", "pipelines", "docs"):
        assert not (REPOSITORY / folder / "__init__.py").exists()
