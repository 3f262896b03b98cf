"""The verbs cache.*, which tasks.py collects."""

from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import task

from dflash import cli, cli_cache
from dflash.cli_help import helped


@task(name="list", auto_shortflags=False, help=helped("root", "json"))
@cli.verb
def cache_list(context: Context, root: str = "", json: bool = False) -> None:
    """List the compile caches that are kept."""
    cli_cache.listed(root=root, as_json=json)


@task(name="show", positional=["snapshot"], auto_shortflags=False, help=helped("snapshot", "root", "json"))
@cli.verb
def cache_show(context: Context, snapshot: str, root: str = "", json: bool = False) -> None:
    """Show what a kept compile cache is valid for."""
    cli_cache.show(snapshot=snapshot, root=root, as_json=json)


@task(name="verify", auto_shortflags=False, help=helped("root", "json"))
@cli.verb
def cache_verify(context: Context, root: str = "", json: bool = False) -> None:
    """Hash every file of every kept compile cache."""
    cli_cache.verify(root=root, as_json=json)


@task(name="restore", positional=["snapshot", "to"], auto_shortflags=False, help=helped("snapshot", "to", "root"))
@cli.verb
def cache_restore(context: Context, snapshot: str, to: str, root: str = "") -> None:
    """Put a kept compile cache at a folder."""
    cli_cache.restore(snapshot=snapshot, to=to, root=root)


@task(name="pin", positional=["snapshot"], auto_shortflags=False, help=helped("snapshot", "for_run", "release", "root"))
@cli.verb
def cache_pin(context: Context, snapshot: str, for_run: str, release: bool = False, root: str = "") -> None:
    """Keep a compile cache for a run."""
    cli_cache.pin(snapshot=snapshot, run=for_run, release=release, root=root)


@task(name="remove", positional=["snapshot"], auto_shortflags=False, help=helped("snapshot", "root"))
@cli.verb
def cache_remove(context: Context, snapshot: str, root: str = "") -> None:
    """Delete a kept compile cache: cache.remove ID."""
    cli_cache.remove(snapshot=snapshot, root=root)


namespace = Collection(
    "cache",
    *(cache_list, cache_show, cache_verify, cache_restore, cache_pin, cache_remove),
)
