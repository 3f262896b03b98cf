"""Runs a module of this package at a host, with the Python of an environment that is in use there.

The module prints what it has to say as JSON: on standard output, and on standard error, as its last line, what went
wrong: {"what": ..., "where": ..., "cure": ...}, ending with the exit status of that kind of error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from dflash.environments.remote import HostEnvironments
from dflash.errors import DFlashError, EnvironmentMismatch
from dflash.hosts.command import Command, Result
from dflash.hosts.connection import Connection
from dflash.hosts.inventory import DEFAULT_ROOT, Host
from dflash.hosts.package import send_package

Errors = Mapping[int, type[DFlashError]]


class HostPrograms:
    """This package at one host, over an open connection."""

    def __init__(
        self, connection: Connection, host: Host, environment: str = "", *, python: str = "", package: str = ""
    ) -> None:
        """Programs run with the Python of `environment`, or else of the only one in use there, and from the package as
        it is here; or else with `python`, from the folder `package` there.

        Raises:
            UsageError: no environment is in use there, or several are.
            TransferFailed, LostConnection: the host.
        """
        self.connection, self.host = connection, host
        self.root = host.root or DEFAULT_ROOT
        self._python = python or HostEnvironments(connection, host).python(environment)
        self._package = package or send_package(connection, host)

    def run(
        self,
        module: str,
        *words: str,
        errors: Errors,
        stdin: bytes = b"",
        line: Callable[[bytes], object] | None = None,
    ) -> bytes:
        """What `module` prints; with `line`, each line as it comes, and nothing is returned.

        Raises:
            the kind of `errors` that the exit status names, with the host's layer before what it says.
            EnvironmentMismatch: the environment there lacks a package. DFlashError: anything else.
        """
        # -P: a folder named dflash in the home there is not the package.
        argv = [self._python, "-P", "-m", module, *words]
        rest = bytearray()

        def lines(data: bytes) -> None:
            rest.extend(data)
            *whole, last = rest.split(b"\n")
            rest[:] = last
            for each in whole:
                assert line is not None
                line(bytes(each))

        command = Command(argv, env={"PYTHONPATH": self._package, "PYTHONDONTWRITEBYTECODE": "1"})
        result = self.connection.execute(command, stdin=stdin, stdout=lines if line else None)
        if result.code:
            raise self._failure(result, errors)
        return result.stdout

    def _failure(self, result: Result, errors: Errors) -> DFlashError:
        lines = result.stderr.decode(errors="replace").strip().splitlines() or [f"it ended with {result.code}"]
        layer = self.connection.layer
        try:
            said = json.loads(lines[-1])
            what = f"{said['where']}: {said['what']}" if said["where"] else str(said["what"])
            return errors.get(result.code, DFlashError)(what, where=layer, cure=said["cure"])
        except (ValueError, KeyError, TypeError):
            if "No module named" not in lines[-1] and "ImportError" not in lines[-1]:
                return DFlashError(f"{self._python}: {lines[-1]}", where=layer)
            again = f"./inv env.create NAME --again --host {self.host.name}, then env.use"
            cure = "rm -r .venv && ./inv --list" if self.host.chain.is_local else f"make a clean one: {again}"
            return EnvironmentMismatch(f"{self._python}: {lines[-1]}", where=layer, cure=cure)
