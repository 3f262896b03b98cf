"""The whole check of this machine: facts, environment, verdict."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dflash.environments import read_spec, verify
from dflash.errors import EnvironmentMismatch
from dflash.finding import Finding, worst_first
from dflash.progress import Progress
from dflash.provision.checks.here import CheckConfig, judge
from dflash.provision.facts import here as facts
from dflash.provision.table import findings_of

REPOSITORY = Path(__file__).parents[2]


def check(config: CheckConfig, root: Path, progress: Progress, *, repository: Path = REPOSITORY) -> dict[str, Any]:
    """Check this machine for work in `root`: {"findings": [...], "ok": bool}, findings worst first.

    The two slow facts, importing torch and compiling, are real and run in child processes while the installed
    files are compared with the lock. Raises ConfigError or StorageError when the declaration can not be read;
    whatever is wrong with the machine itself is a finding.
    """
    environment = repository / "envs" / config.environment
    spec = read_spec(environment / "env.yaml")
    progress.update(0, 3)
    with ThreadPoolExecutor(2, thread_name_prefix="check") as pool:
        torch = pool.submit(facts.read_torch)
        compiler = pool.submit(facts.read_compiler) if config.compile_test else None
        installed = verify(environment)
        progress.update(1, 3)
        read = facts.Facts(
            python=facts.read_python(),
            platform=facts.read_platform(),
            torch=torch.result(),
            compiler=compiler.result() if compiler else None,
            disk=facts.read_disk(root),
            memory=facts.read_memory(),
            cpus=facts.read_cpus(),
            shm=facts.read_disk(Path("/dev/shm")),
        )
    progress.update(2, 3)
    findings = worst_first([*judge(read, config, spec), *installed])
    progress.update(3, 3)
    blocking = [each for each in findings if each.severity == "block"]
    return {"findings": [each.to_json() for each in findings], "ok": not blocking}


def require(result: Mapping[str, Any]) -> None:
    """Raise EnvironmentMismatch, in one line, when `check`'s result has blocking findings."""
    blocking = [each for each in findings_of(result) if each.severity == "block"]
    if blocking:
        raise EnvironmentMismatch(_named(blocking), where="environment", cure=_cures(blocking))


def _named(blocking: list[Finding]) -> str:
    shown = "; ".join(f"{each.subject}: {each.found}" for each in blocking[:3])
    return shown + (f"; and {len(blocking) - 3} more" if len(blocking) > 3 else "")


def _cures(blocking: list[Finding]) -> str:
    cures = list(dict.fromkeys(each.cure for each in blocking if each.cure))
    return cures[0] if len(cures) == 1 else "`./inv check` says what to do about each"
