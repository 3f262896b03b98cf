"""What the verb check does with --host."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dflash.cli import print_json
from dflash.cli_help import LOCAL
from dflash.cli_hosts import everywhere, hosts_of
from dflash.errors import UsageError
from dflash.hosts.inventory import Host

if TYPE_CHECKING:
    from dflash.provision.checking import Checked


def check(*, host: str, fix: bool, pipeline: str, root: str, as_json: bool) -> None:
    """Check hosts, layer by layer; with `fix`, mend what can be mended by itself and check again. Exits with 1 when
    something is wrong."""
    from dflash.provision.checking import check_host, fix_host

    if not host:
        raise UsageError("--fix is for a host", cure="name it: ./inv check --host local --fix")
    if root or pipeline != LOCAL:
        cure = "leave it out: a host's root and GPUs are in hosts.yaml"
        raise UsageError("it is not for hosts", where="--root" if root else "--pipeline", cure=cure)
    hosts = hosts_of(host)

    def one(each: Host) -> Checked:
        found = check_host(each)
        if fix:
            found = fix_host(found, lambda line: print(f"{each.name}: {line}", file=sys.stderr, flush=True))
        return found

    answers = everywhere(hosts, one, lambda found: "ok" if found.ok else f"wrong: {found.layer}")
    if as_json:
        print_json({"hosts": [found.to_json() for _, found in answers] + answers.failures()})
    for _, found in () if as_json else answers:
        _show(found, named=len(hosts) > 1)
    answers.leave()
    sys.exit(0 if all(found.ok for _, found in answers) else 1)


def _show(found: Checked, named: bool) -> None:
    from dflash.pipeline.show import console_on
    from dflash.provision.table import print_table

    console = console_on()
    if named:
        console.print(found.host.name, style="bold", highlight=False)
    print_table(found.findings, console)
    if found.layer:
        console.print(f"begin with {found.layer}: what is wrong after it may come from that", highlight=False)
    if found.mendable:
        console.print(f"--fix mends: {', '.join(found.mendable)}", highlight=False)
