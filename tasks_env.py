"""The verbs env.*, which tasks.py collects."""

from collections.abc import Sequence

from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import task

from dflash import cli, cli_environments
from dflash.cli_help import helped


@task(
    name="lock",
    positional=["name"],
    iterable=["upgrade"],
    auto_shortflags=False,
    help=helped("name", "upgrade", "check", "json"),
)
@cli.verb
def env_lock(
    context: Context, name: str, upgrade: Sequence[str] | None = None, check: bool = False, json: bool = False
) -> None:
    """Make an environment's lock again: env.lock NAME."""
    cli_environments.lock(name=name, upgrade=upgrade or (), check=check, as_json=json)


@task(name="create", positional=["name"], auto_shortflags=False, help=helped("name", "host", "wheels", "again", "json"))
@cli.verb
def env_create(
    context: Context, name: str, host: str = "local", wheels: str = "", again: bool = False, json: bool = False
) -> None:
    """Make an environment on a host: env.create NAME --host H."""
    cli_environments.create(name=name, host=host, wheels=wheels, again=again, as_json=json)


@task(name="use", positional=["name"], auto_shortflags=False, help=helped("name", "generation", "host"))
@cli.verb
def env_use(context: Context, name: str, generation: str = "", host: str = "local") -> None:
    """Switch a host to a generation: env.use NAME."""
    cli_environments.use(name=name, wanted=generation, host=host)


@task(name="rollback", positional=["name"], auto_shortflags=False, help=helped("name", "host"))
@cli.verb
def env_rollback(context: Context, name: str, host: str = "local") -> None:
    """Switch back to the one used before: env.rollback NAME."""
    cli_environments.rollback(name=name, host=host)


@task(name="list", auto_shortflags=False, help=helped("host", "json"))
@cli.verb
def env_list(context: Context, host: str = "local", json: bool = False) -> None:
    """List the generations on a host."""
    cli_environments.listed(host=host, as_json=json)


@task(name="gc", positional=["name"], auto_shortflags=False, help=helped("name", "host", "json"))
@cli.verb
def env_gc(context: Context, name: str, host: str = "local", json: bool = False) -> None:
    """Remove generations that nobody needs: env.gc NAME."""
    cli_environments.gc(name=name, host=host, as_json=json)


@task(
    name="pin",
    positional=["name"],
    auto_shortflags=False,
    help=helped("name", "generation", "for_run", "release", "host"),
)
@cli.verb
def env_pin(
    context: Context, name: str, for_run: str, generation: str = "", release: bool = False, host: str = "local"
) -> None:
    """Keep a generation for a run: env.pin NAME --for-run RUN."""
    cli_environments.pin(name=name, wanted=generation, run=for_run, release=release, host=host)


@task(name="verify", positional=[], auto_shortflags=False, help=helped("name", "host", "quick", "cached", "json"))
@cli.verb
def env_verify(
    context: Context, name: str = "", host: str = "local", quick: bool = False, cached: bool = False, json: bool = False
) -> None:
    """Compare every file that a host uses with its lock."""
    mode = cli_environments.mode_of(quick, cached)
    cli_environments.verify(name=name, host=host, mode=mode, as_json=json)


@task(name="diff", positional=["a", "b"], auto_shortflags=False, help=helped("a", "b", "root", "all", "json"))
@cli.verb
def env_diff(context: Context, a: str, b: str, root: str = "", all: bool = False, json: bool = False) -> None:
    """Compare environments, hosts or runs: env.diff A B."""
    cli_environments.diff(a=a, b=b, root=root, everything=all, as_json=json)


@task(name="wheelhouse", positional=["name"], auto_shortflags=False, help=helped("name", "to", "json"))
@cli.verb
def env_wheelhouse(context: Context, name: str, to: str = "", json: bool = False) -> None:
    """Fetch a lock's wheels, and prove that they suffice."""
    cli_environments.wheelhouse(name=name, to=to, as_json=json)


namespace = Collection(
    "env",
    *(env_lock, env_create, env_use, env_rollback, env_list, env_gc, env_pin, env_verify, env_diff, env_wheelhouse),
)
