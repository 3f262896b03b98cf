"""The verbs: `./inv --list` shows them, `./inv --help VERB` explains one."""

from collections.abc import Sequence

from invoke.context import Context
from invoke.tasks import task

from dflash import cli, cli_hosts

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
    """Run a command on a host, byte for byte: exec --host H -- ARGV."""
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
    """Copy a file or folder to a host: put SOURCE PLACE --host H."""
    cli_hosts.put(host=host, source=source, place=place)


@task(positional=["place", "target"], auto_shortflags=False, help=helped("host", "place", "target"))
@cli.verb
def get(context: Context, place: str, target: str, host: str) -> None:
    """Copy a file or folder from a host: get PLACE TARGET --host H."""
    cli_hosts.get(host=host, place=place, target=target)


@task(auto_shortflags=False, help=helped("host", "json"))
@cli.verb
def ping(context: Context, host: str, json: bool = False) -> None:
    """Show each layer on the way to a host, and how fast it answers."""
    cli_hosts.ping(host=host, as_json=json)


@task(positional=["room"], auto_shortflags=False, help=helped("room", "json"))
@cli.verb
def bench(context: Context, room: str, json: bool = False) -> None:
    """Measure a room on this machine: bench hosts."""
    cli_hosts.bench(room=room, as_json=json)


@task(name="test", auto_shortflags=False, help=helped("nightly"))
@cli.verb
def lint_and_tests(context: Context, nightly: bool = False) -> None:
    """Lint and types, then the tests; stop at the first that fails."""
    cli.test(nightly=nightly)


@task(auto_shortflags=False)
@cli.verb
def lint(context: Context) -> None:
    """Lint and types only."""
    cli.lint()
