"""The verbs: `./inv --list` shows them, `./inv --help VERB` explains one."""

from collections.abc import Sequence

from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import task

from dflash import cli, cli_environments, cli_hosts

LOCAL = "pipelines/local.yaml"
HELP = {
    "pipeline": f"The pipeline's YAML file (default: {LOCAL}).",
    "host": "A chain such as ssh:root@gpu1/pct:200, or a name of hosts.yaml; exec and ping take several, with commas.",
    "root": "The folder that holds work/ and runs/ (default: this project's folder).",
    "set": "Change a step's configuration: step.key=value; may be given many times.",
    "json": "Print one JSON document on standard output, and nothing else there.",
    "run": "The run's id (default: the newest). `./inv show ID` does the same.",
    "script": "Send this script along and run it there, with its own interpreter; ARGV are its arguments.",
    "env": "Set a variable for the command: NAME=VALUE; may be given many times.",
    "room": "What to measure: hosts or tools.",
    "detach": "Start it as a job that runs on when you go, and print the job's id.",
    "job": "The job's id.",
    "offset": "The byte of the log to begin at (default: 0).",
    "grace": "Seconds between asking the processes to end and killing them (default: 10).",
    "source": "A file or folder here.",
    "place": "A path there.",
    "target": "Where to put it here.",
    "cwd": "The folder to run in, there.",
    "why": "Give every reason, not only the first.",
    "nightly": "Run the slow tests too.",
    "name": "The environment's name, a folder below envs/.",
    "upgrade": "Let this package move to a newer version; may be given many times.",
    "check": "Change nothing; say whether the lock is stale, and which input has changed.",
    "wheels": "A folder of wheels, which then is the only source.",
    "again": "Make one more from the same lock, to replace a damaged one.",
    "generation": "A generation's id, or its beginning (default: the newest of the lock).",
    "for_run": "The run that needs it.",
    "quick": "Compare sizes, times and RECORDs only.",
    "cached": "Hash only what has changed since it was hashed last.",
    "a": "NAME (what is declared), NAME@HOST (what is in use there), or a run's id.",
    "b": "The other side.",
    "all": "Show what is the same, too.",
    "to": "The folder to fill (default: wheelhouse/NAME).",
}


def helped(*names: str) -> dict[str, str]:
    """The help of these options."""
    return {name: HELP[name] for name in names}


@task(iterable=["set"], auto_shortflags=False, help=helped("pipeline", "host", "root", "set", "json"))
@cli.verb
def train(
    context: Context,
    pipeline: str = LOCAL,
    host: str = "local",
    root: str = "",
    set: Sequence[str] | None = None,
    json: bool = False,
) -> None:
    """Run a pipeline, from checks to an exported drafter."""
    cli.train(pipeline=pipeline, host=host, root=root, overrides=set or (), as_json=json)


@task(iterable=["set"], auto_shortflags=False, help=helped("pipeline", "host", "root", "set", "why", "json"))
@cli.verb
def plan(
    context: Context,
    pipeline: str = LOCAL,
    host: str = "local",
    root: str = "",
    set: Sequence[str] | None = None,
    why: bool = False,
    json: bool = False,
) -> None:
    """Say what a run would do and why, and which steps need a GPU."""
    cli.plan(pipeline=pipeline, host=host, root=root, overrides=set or (), why=why, as_json=json)


@task(auto_shortflags=False, help=helped("pipeline", "root", "json"))
@cli.verb
def check(context: Context, pipeline: str = LOCAL, root: str = "", json: bool = False) -> None:
    """Check this machine and its environment against the lock."""
    cli.check(pipeline=pipeline, root=root, as_json=json)


@task(auto_shortflags=False, help=helped("run", "root", "json"))
@cli.verb
def show(context: Context, run: str = "", root: str = "", json: bool = False) -> None:
    """Show a run: its figures, and what each step did and why."""
    cli.show(run=run, root=root, as_json=json)


@task(auto_shortflags=False, help=helped("root", "json"))
@cli.verb
def runs(context: Context, root: str = "", json: bool = False) -> None:
    """List the runs, oldest first."""
    cli.runs(root=root, as_json=json)


@task(name="exec", iterable=["env"], auto_shortflags=False, help=helped("host", "script", "detach", "env", "cwd"))
@cli.verb
def execute(
    context: Context,
    host: str,
    script: str = "",
    detach: bool = False,
    env: Sequence[str] | None = None,
    cwd: str = "",
) -> None:
    """Run a command on a host: exec --host H -- ARGV."""
    start = cli_hosts.detach if detach else cli_hosts.run
    start(host=host, script=script, env=env or (), cwd=cwd)


@task(auto_shortflags=False, help=helped("host", "json"))
@cli.verb
def jobs(context: Context, host: str, json: bool = False) -> None:
    """List the detached jobs of a host, oldest first."""
    cli_hosts.list_jobs(host=host, as_json=json)


@task(positional=["job"], auto_shortflags=False, help=helped("job", "host", "offset"))
@cli.verb
def follow(context: Context, job: str, host: str, offset: int = 0) -> None:
    """Show a job's log until the job ends: follow JOB --host H."""
    cli_hosts.follow(host=host, job=job, offset=offset)


@task(positional=["job"], auto_shortflags=False, help=helped("job", "host", "grace"))
@cli.verb
def stop(context: Context, job: str, host: str, grace: float = 10.0) -> None:
    """End every process of a job: stop JOB --host H."""
    cli_hosts.stop(host=host, job=job, grace=grace)


@task(positional=["source", "place"], auto_shortflags=False, help=helped("host", "source", "place"))
@cli.verb
def put(context: Context, source: str, place: str, host: str) -> None:
    """Copy to a host: put SOURCE PLACE --host H."""
    cli_hosts.put(host=host, source=source, place=place)


@task(positional=["place", "target"], auto_shortflags=False, help=helped("host", "place", "target"))
@cli.verb
def get(context: Context, place: str, target: str, host: str) -> None:
    """Copy from a host: get PLACE TARGET --host H."""
    cli_hosts.get(host=host, place=place, target=target)


@task(auto_shortflags=False, help=helped("host", "json"))
@cli.verb
def ping(context: Context, host: str, json: bool = False) -> None:
    """Show each layer on the way to a host, and its latency."""
    cli_hosts.ping(host=host, as_json=json)


@task(positional=["room"], auto_shortflags=False, help=helped("room", "json"))
@cli.verb
def bench(context: Context, room: str, json: bool = False) -> None:
    """Measure a room on this machine: bench hosts."""
    cli_hosts.bench(room=room, as_json=json)


@task(name="test", auto_shortflags=False, help=helped("nightly"))
@cli.verb
def lint_and_tests(context: Context, nightly: bool = False) -> None:
    """Lint and types, then the tests."""
    cli.test(nightly=nightly)


@task(auto_shortflags=False)
@cli.verb
def lint(context: Context) -> None:
    """Lint and types only."""
    cli.lint()


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


@task(name="pin", positional=["name"], auto_shortflags=False, help=helped("name", "generation", "for_run", "host"))
@cli.verb
def env_pin(context: Context, name: str, for_run: str, generation: str = "", host: str = "local") -> None:
    """Keep a generation for a run, or, without one, let go of it."""
    cli_environments.pin(name=name, wanted=generation, run=for_run, host=host)


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
    *(train, plan, check, show, runs, execute, jobs, follow, stop, put, get, ping, bench, lint_and_tests, lint)
)
namespace.add_collection(
    Collection(
        "env",
        *(env_lock, env_create, env_use, env_rollback, env_list, env_gc, env_pin, env_verify, env_diff, env_wheelhouse),
    )
)
