"""What the verb provision does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dflash.cli import HOME, print_json
from dflash.cli_hosts import everywhere, hosts_of
from dflash.hosts.inventory import Host

if TYPE_CHECKING:
    from dflash.provision.applying import Provisioned


def provision(*, host: str, only: Sequence[str], preview: bool, as_json: bool) -> None:
    """Make hosts what hosts.yaml declares, or, with `preview`, show what that would change. Exits with 1 when a preview
    has something that can not be made so."""
    from dflash.provision import applying
    from dflash.provision.declaration import declared

    hosts = hosts_of(host)
    specs = {each.name: declared(each.name, HOME / "hosts.yaml") for each in hosts}
    names = [name for text in only for name in text.split(",")]

    def one(each: Host) -> list[Provisioned]:
        def tell(line: str) -> None:
            name = f"{each.name}: " if len(hosts) > 1 else ""
            print(f"{name}{line}", file=sys.stderr if as_json else sys.stdout, flush=True)

        return applying.provision(each, specs[each.name], only=names, preview=preview, tell=tell)

    answers = everywhere(hosts, one)
    if as_json:
        print_json({"hosts": [_plain(each, done) for each, done in answers] + answers.failures()})
    for each, done in answers:
        print(_summed_up(each.name, done, preview), file=sys.stderr)
    answers.leave()
    if any(applying.refusals(done) for _, done in answers):
        sys.exit(1)


def _plain(host: Host, done: Sequence[Provisioned]) -> dict[str, object]:
    changes = sum(each.changes for each in done)
    return {"host": host.name, "changes": changes, "machines": [each.to_json() for each in done]}


def _summed_up(name: str, done: Sequence[Provisioned], preview: bool) -> str:
    changes = sum(each.changes for each in done)
    others = sum(len(each.steps) for each in done) - changes
    if preview:
        return f"{name}: {changes} would change, {others} would not; nothing was changed"
    return f"{name}: {changes} changed, {others} kept" if changes else f"{name}: nothing to do, {others} kept"
