"""The verbs: `./inv --list` shows them, `./inv --help VERB` explains one."""

from collections.abc import Sequence

from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import task

import tasks_cache
import tasks_env
import tasks_runs
from dflash import cli, cli_check, cli_evaluate, cli_hosts, cli_images, cli_prewarm, cli_provision, cli_split, cli_train
from dflash.cli_help import HELP, LOCAL, helped

WHERE_TO_RUN = ("pipeline", "host", "root", "set", "json")


@task(
    iterable=["set"],
    auto_shortflags=False,
    help={**helped(*WHERE_TO_RUN, "wheels", "wait"), "environment": HELP["environment_there"]},
)
@cli.verb
def train(
    context: Context,
    pipeline: str = LOCAL,
    host: str = "local",
    root: str = "",
    environment: str = "",
    wheels: str = "",
    wait: bool = False,
    set: Sequence[str] | None = None,
    json: bool = False,
) -> None:
    """Run a pipeline, from checks to an exported drafter."""
    where = {"pipeline": pipeline, "host": host, "root": root, "environment": environment, "wheels": wheels}
    cli_train.train(**where, wait=wait, overrides=set or (), as_json=json)


@task(iterable=["set"], auto_shortflags=False, help=helped(*WHERE_TO_RUN, "why"))
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
    cli_train.plan(pipeline=pipeline, host=host, root=root, overrides=set or (), why=why, as_json=json)


@task(iterable=["set"], auto_shortflags=False, help=helped(*WHERE_TO_RUN, "environment"))
@cli.verb
def prewarm(
    context: Context,
    pipeline: str = LOCAL,
    host: str = "local",
    environment: str = "",
    root: str = "",
    set: Sequence[str] | None = None,
    json: bool = False,
) -> None:
    """Compile and prove what a pipeline's training will call."""
    cli_prewarm.prewarm(
        pipeline=pipeline, host=host, environment=environment, root=root, overrides=set or (), as_json=json
    )


@task(iterable=["set"], auto_shortflags=False, help=helped(*WHERE_TO_RUN, "environment", "workers", "link"))
@cli.verb
def split(
    context: Context,
    pipeline: str = LOCAL,
    host: str = "local",
    environment: str = "",
    root: str = "",
    set: Sequence[str] | None = None,
    workers: int = 0,
    link: float = cli_split.GB_PER_S,
    json: bool = False,
) -> None:
    """Measure target and drafter, and propose a split."""
    where = {"pipeline": pipeline, "host": host, "environment": environment, "root": root}
    cli_split.split(**where, overrides=set or (), workers=workers, link=link, as_json=json)


@task(
    positional=["checkpoint"],
    iterable=["data"],
    auto_shortflags=False,
    help={
        **helped("checkpoint", "data", "temperature", "new_tokens", "limit", "dtype", "device", "seed", "json"),
        "target": HELP["target_folder"],
        "stop": HELP["to_the_end"],
    },
)
@cli.verb
def evaluate(
    context: Context,
    checkpoint: str,
    target: str,
    data: Sequence[str] | None = None,
    temperature: float = 0.0,
    new_tokens: int = 128,
    limit: int = 0,
    stop: bool = False,
    dtype: str = "",
    device: str = "cpu",
    seed: int = 0,
    json: bool = False,
) -> None:
    """Decode prompts with a drafter: evaluate CHECKPOINT."""
    options: dict[str, object] = {"temperature": temperature, "new_tokens": new_tokens, "limit": limit, "stop": stop}
    options |= {"dtype": dtype, "device": device, "seed": seed}
    cli_evaluate.evaluate(checkpoint=checkpoint, data=data or (), target=target, options=options, as_json=json)


@task(auto_shortflags=False, help={**helped("pipeline", "root", "fix", "json"), "host": HELP["hosts"]})
@cli.verb
def check(
    context: Context, pipeline: str = LOCAL, root: str = "", host: str = "", fix: bool = False, json: bool = False
) -> None:
    """Check this machine, or hosts with their GPUs."""
    if host or fix:
        cli_check.check(host=host, fix=fix, pipeline=pipeline, root=root, as_json=json)
    else:
        cli.check(pipeline=pipeline, root=root, as_json=json)


@task(iterable=["only"], auto_shortflags=False, help=helped("host", "plan", "only", "json"))
@cli.verb
def provision(
    context: Context, host: str, plan: bool = False, only: Sequence[str] | None = None, json: bool = False
) -> None:
    """Make hosts what hosts.yaml says they have."""
    cli_provision.provision(host=host, only=only or (), preview=plan, as_json=json)


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


@task(
    positional=["job"],
    auto_shortflags=False,
    help={**helped("host", "offset", "root"), "job": HELP["job_or_run"]},
)
@cli.verb
def follow(context: Context, job: str, host: str = "", offset: int = 0, root: str = "") -> None:
    """Show a run, or a job of a host, to its end: follow RUN."""
    if host:
        cli_hosts.follow(host=host, job=job, offset=offset)
    else:
        cli_train.follow(run=job, root=root, offset=offset)


@task(positional=["job"], auto_shortflags=False, help={**helped("host", "grace", "root"), "job": HELP["job_or_run"]})
@cli.verb
def stop(context: Context, job: str, host: str = "", grace: float = 10.0, root: str = "") -> None:
    """End a run, or a job of a host: stop RUN."""
    if host:
        cli_hosts.stop(host=host, job=job, grace=grace)
    else:
        cli_train.stop(run=job, root=root, grace=grace)


@task(positional=["run"], auto_shortflags=False, help={**helped("root", "wait", "json"), "run": HELP["run_away"]})
@cli.verb
def resume(context: Context, run: str, root: str = "", wait: bool = False, json: bool = False) -> None:
    """Go on with a run that a host had: resume RUN."""
    cli_train.resume(run=run, root=root, wait=wait, as_json=json)


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
    """Measure a room on this machine, such as hosts: bench ROOM."""
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
    auto_shortflags=False,
    help={**helped("base", "wheels", "push", "out", "root", "json"), "name": HELP["image"], "check": HELP["twice"]},
)
@cli.verb
def build(
    context: Context,
    name: str = "train",
    base: str = "",
    wheels: str = "",
    push: str = "",
    out: str = "",
    check: bool = False,
    root: str = "",
    json: bool = False,
) -> None:
    """Build an image: build [NAME]."""
    cli_images.build(name=name, base=base, wheels=wheels, push=push, out=out, check=check, root=root, as_json=json)


@task(name="verify", positional=["reference"], auto_shortflags=False, help=helped("reference", "host", "root", "json"))
@cli.verb
def image_verify(context: Context, reference: str, host: str = "local", root: str = "", json: bool = False) -> None:
    """Compare an image with its build and lock."""
    cli_images.verify(reference=reference, host=host, root=root, as_json=json)


namespace = Collection(
    *(
        train,
        plan,
        prewarm,
        split,
        evaluate,
        check,
        provision,
        execute,
        jobs,
        follow,
        stop,
        resume,
        put,
        get,
        ping,
        bench,
        build,
        lint_and_tests,
        lint,
    )
)
for each in (tasks_cache.namespace, tasks_env.namespace, Collection("image", image_verify)):
    namespace.add_collection(each)
for each in tasks_runs.namespace.tasks.values():
    namespace.add_task(each)
