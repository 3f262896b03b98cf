"""The verbs cache.*, which tasks.py collects."""

from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import task

from dflash import cli, cli_cache
from dflash.cli_help import helped

WHERE = helped("root", "environment") | {"host": "The host whose vault it is (default: this machine)."}
WAY = helped("snapshot", "environment", "root") | {"host": "The host: a chain, or a name of hosts.yaml."}


@task(name="list", auto_shortflags=False, help=helped("json") | WHERE)
@cli.verb
def cache_list(context: Context, host: str = "", environment: str = "", root: str = "", json: bool = False) -> None:
    """List the compile caches that are kept.

    They are in vault/ below the root, or in the folder that DFLASH_VAULT names, which several hosts may share. They are
    signed with ~/.dflash/vault.key, or with the key that DFLASH_VAULT_KEY names: who shares a vault has a copy of it.
    """
    cli_cache.listed(where=(host, environment, root), as_json=json)


@task(name="show", positional=["snapshot"], auto_shortflags=False, help=helped("snapshot", "json") | WHERE)
@cli.verb
def cache_show(
    context: Context, snapshot: str, host: str = "", environment: str = "", root: str = "", json: bool = False
) -> None:
    """Show what a kept compile cache is valid for."""
    cli_cache.show(snapshot=snapshot, where=(host, environment, root), as_json=json)


@task(name="verify", auto_shortflags=False, help=helped("json") | WHERE)
@cli.verb
def cache_verify(context: Context, host: str = "", environment: str = "", root: str = "", json: bool = False) -> None:
    """Hash every file of every kept compile cache."""
    cli_cache.verify(where=(host, environment, root), as_json=json)


@task(name="save", positional=["folder"], auto_shortflags=False, help=helped("folder", "json") | WHERE)
@cli.verb
def cache_save(
    context: Context, folder: str, host: str = "", environment: str = "", root: str = "", json: bool = False
) -> None:
    """Keep a compile cache that pre-warm has proved."""
    cli_cache.save(folder=folder, where=(host, environment, root), as_json=json)


@task(name="restore", positional=["snapshot", "to"], auto_shortflags=False, help=helped("snapshot", "to") | WHERE)
@cli.verb
def cache_restore(
    context: Context, snapshot: str, to: str, host: str = "", environment: str = "", root: str = ""
) -> None:
    """Put a kept compile cache at a folder."""
    cli_cache.restore(snapshot=snapshot, to=to, where=(host, environment, root))


@task(
    name="pin",
    positional=["snapshot"],
    auto_shortflags=False,
    help=helped("snapshot", "for_run", "release") | WHERE,
)
@cli.verb
def cache_pin(
    context: Context,
    snapshot: str,
    for_run: str,
    release: bool = False,
    host: str = "",
    environment: str = "",
    root: str = "",
) -> None:
    """Keep a compile cache for a run."""
    cli_cache.pin(snapshot=snapshot, run=for_run, release=release, where=(host, environment, root))


@task(name="remove", positional=["snapshot"], auto_shortflags=False, help=helped("snapshot") | WHERE)
@cli.verb
def cache_remove(context: Context, snapshot: str, host: str = "", environment: str = "", root: str = "") -> None:
    """Delete a kept compile cache: cache.remove ID."""
    cli_cache.remove(snapshot=snapshot, where=(host, environment, root))


@task(name="put", positional=["snapshot"], auto_shortflags=False, help=WAY)
@cli.verb
def cache_put(context: Context, snapshot: str, host: str, environment: str = "", root: str = "") -> None:
    """Bring a kept compile cache to a host."""
    cli_cache.put(snapshot=snapshot, host=host, environment=environment, root=root)


@task(name="get", positional=["snapshot"], auto_shortflags=False, help=WAY)
@cli.verb
def cache_get(context: Context, snapshot: str, host: str, environment: str = "", root: str = "") -> None:
    """Bring a kept compile cache from a host."""
    cli_cache.get(snapshot=snapshot, host=host, environment=environment, root=root)


namespace = Collection(
    "cache",
    *(cache_list, cache_show, cache_verify, cache_save, cache_restore),
    *(cache_pin, cache_remove, cache_put, cache_get),
)
