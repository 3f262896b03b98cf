from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

from dflash.provision.checks.order import host_facts, inside_facts
from dflash.provision.checks.wanted import Wanted

REPOSITORY = Path(__file__).parents[2]


def test_this_machine_is_recorded_with_nothing_but_yaml_installed() -> None:
    """As on a GPU machine, where no tool of the desk is."""
    program = """
import sys
for absent in ("fabric", "invoke", "numpy", "packaging", "pydantic", "rich", "tenacity", "torch", "uv"):
    sys.modules[absent] = None
from dflash.provision.recording import main
sys.argv[1:] = ["local"]
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-Bc", program], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    recorded = yaml.safe_load(done.stdout)["host"]
    asked = [*host_facts(Wanted()), *inside_facts(Wanted())]
    assert list(recorded) == list(dict.fromkeys(each.name for each in asked))
    assert recorded["kernel"]["stdout"].startswith("Linux ")


def test_a_chain_that_is_none_is_one_line() -> None:
    words = [sys.executable, "-Bm", "dflash.provision.recording", "lxd:"]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: chain 'lxd:'")
