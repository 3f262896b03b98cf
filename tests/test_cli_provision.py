"""`./inv provision` as a person types it: a preview, one JSON document, several hosts, one line for a mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
MAIN = """
import sys
from pathlib import Path
from dflash import cli
cli.HOME = Path(sys.argv[1])
cli.main(["provision", *sys.argv[2:]])
"""


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """Two hosts, both this machine, with folders of their own."""
    hosts = {
        name: {
            "chain": "local",
            "root": f"{tmp_path}/{name}/root",
            "machine": {"directories": [f"{tmp_path}/{name}/models"]},
        }
        for name in ("gpu1", "gpu2")
    }
    (tmp_path / "hosts.yaml").write_text(json.dumps(hosts))
    return tmp_path


def provision(inventory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-B", "-c", MAIN, str(inventory), *words],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_preview_shows_a_diff_and_then_it_is_done_and_then_there_is_nothing_to_do(inventory: Path):
    only = ("--host", "gpu1", "--only", "directories")
    preview = provision(inventory, *only, "--plan")
    assert preview.returncode == 0, preview.stderr
    assert f"--- local directory {inventory}/gpu1/models\n+++ as declared\n@@ -1 +1 @@\n-absent\n" in preview.stdout
    assert preview.stderr == "gpu1: 3 would change, 0 would not; nothing was changed\n"
    assert not (inventory / "gpu1").exists()
    assert provision(inventory, *only).stderr == "gpu1: 3 changed, 0 kept\n"
    assert (inventory / "gpu1" / "models").is_dir()
    again = provision(inventory, *only)
    assert again.stderr == "gpu1: nothing to do, 3 kept\n"
    assert f"local directory {inventory}/gpu1/models: it is there" in again.stdout


def test_several_hosts_at_once_give_one_document_and_a_table(inventory: Path):
    (inventory / "gpu2").write_text("in the way")
    done = provision(inventory, "--host", "gpu1,gpu2", "--only", "directories", "--json")
    assert done.returncode == 1
    one, other = json.loads(done.stdout)["hosts"]
    assert (one["host"], one["changes"], one["machines"][0]["layer"]) == ("gpu1", 3, "local")
    assert one["machines"][0]["steps"][0] == {
        "operation": "directories",
        "subject": f"directory {inventory}/gpu1/models",
        "state": "change",
        "before": "absent",
        "after": "a directory",
    }
    assert other["host"] == "gpu2"
    assert "Not a directory" in other["error"]
    assert "2 hosts: 1 ok, 1 failed" in done.stderr


def test_what_can_not_be_made_so_is_shown_by_a_preview_which_then_fails(inventory: Path):
    (inventory / "gpu1").mkdir()
    (inventory / "gpu1" / "models").write_text("in the way")
    done = provision(inventory, "--host", "gpu1", "--only", "directories", "--plan")
    assert done.returncode == 1
    assert "can not be made so" in done.stdout
    assert "there is a regular file, not a directory" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--host", "gpu1", "--only", "directory"], "there is no operation 'directory'; did you mean 'directories'?"),
        (["--host", "gpu3"], "there is no host 'gpu3'; did you mean"),
    ],
)
def test_a_mistake_is_one_line(inventory: Path, words: list[str], says: str):
    done = provision(inventory, *words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr
