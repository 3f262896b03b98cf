"""Environments are declared in `envs/<name>/` and compared with what is installed, never adjusted in place.

`spec` reads env.yaml, `lock` reads requirements.lock, `installed` reads a virtual environment and `verify`
judges it. `bootstrap` makes `.venv`; it runs before anything is installed, so it imports nothing from here.
"""

from dflash.environments.lock import Lock, Locked, lock_id, parse_lock, read_lock
from dflash.environments.spec import EnvironmentSpec, read_spec
from dflash.environments.verify import judge, verify

__all__ = [
    "EnvironmentSpec",
    "Lock",
    "Locked",
    "judge",
    "lock_id",
    "parse_lock",
    "read_lock",
    "read_spec",
    "verify",
]
