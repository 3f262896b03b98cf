"""The verbs that look at runs, which tasks.py collects."""

from collections.abc import Sequence

from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import task

from dflash import cli, cli_export, cli_replay, cli_runs, cli_train
from dflash.cli_help import HELP, LOCAL, helped


@task(
    positional=["run"],
    iterable=["accept"],
    auto_shortflags=False,
    help={
        **helped("host", "root", "accept", "noise", "wheels", "json"),
        "run": HELP["run_again"],
        "plan": HELP["replay_plan"],
    },
)
@cli.verb
def replay(
    context: Context,
    run: str,
    host: str = "local",
    root: str = "",
    plan: bool = False,
    accept: Sequence[str] | None = None,
    noise: int = 0,
    wheels: str = "",
    json: bool = False,
) -> None:
    """Do a run again, and say what differs: replay RUN."""
    cli_replay.replay(
        run=run, host=host, root=root, plan=plan, accept=accept or (), noise=noise, wheels=wheels, as_json=json
    )


@task(auto_shortflags=False, help=helped("run", "root", "json"))
@cli.verb
def show(context: Context, run: str = "", root: str = "", json: bool = False) -> None:
    """Show a run: its figures, and what each step did and why."""
    cli_runs.show(run=run, root=root, as_json=json)


@task(
    auto_shortflags=False,
    help={**helped("root", "json"), "pipeline": HELP["of_pipeline"], "status": HELP["of_status"]},
)
@cli.verb
def runs(context: Context, pipeline: str = "", status: str = "", root: str = "", json: bool = False) -> None:
    """List the runs, oldest first."""
    cli_runs.runs(pipeline=pipeline, status=status, root=root, as_json=json)


@task(
    positional=["a", "b"],
    auto_shortflags=False,
    help={**helped("root", "json"), "a": HELP["run_a"], "b": HELP["run_b"]},
)
@cli.verb
def compare(context: Context, a: str, b: str, root: str = "", json: bool = False) -> None:
    """Show two runs side by side: compare A B."""
    cli_runs.compare(a=a, b=b, root=root, as_json=json)


@task(
    iterable=["run"],
    auto_shortflags=False,
    help={**helped("outputs", "root"), "run": HELP["runs"], "plan": HELP["preview"]},
)
@cli.verb
def rm(
    context: Context, run: Sequence[str] | None = None, outputs: bool = False, root: str = "", plan: bool = False
) -> None:
    """Delete runs, and what only they made: rm RUN..."""
    cli_runs.remove(wanted=run or (), outputs=outputs, root=root, preview=plan)


@task(
    auto_shortflags=False,
    help={**helped("run", "root"), "out": HELP["report_out"], "to": HELP["report_to"], "python": HELP["report_python"]},
)
@cli.verb
def report(context: Context, run: str = "", root: str = "", out: str = "", to: str = "", python: str = "") -> None:
    """Write a run's report, one HTML page: report RUN."""
    cli_runs.report(run=run, root=root, out=out, to=to, python=python)


@task(
    iterable=["set"],
    auto_shortflags=False,
    help={**helped("pipeline", "host", "root", "set"), "out": HELP["out_svg"]},
)
@cli.verb
def graph(
    context: Context,
    pipeline: str = LOCAL,
    host: str = "local",
    root: str = "",
    set: Sequence[str] | None = None,
    out: str = "",
) -> None:
    """Draw a pipeline and what a run would do, as SVG."""
    cli_train.graph(pipeline=pipeline, host=host, root=root, overrides=set or (), out=out)


@task(
    positional=["pipeline"],
    auto_shortflags=False,
    help={
        **helped("pipeline"),
        "to": HELP["engine"],
        "image": HELP["reference"],
        "volume": HELP["volume"],
        "gpu": HELP["gpu_type"],
        "secret": HELP["secret_of"],
        "out": HELP["export_out"],
    },
)
@cli.verb
def export(
    context: Context,
    pipeline: str,
    to: str,
    image: str,
    volume: str = "dflash",
    gpu: str = "",
    secret: str = "",
    out: str = "",
) -> None:
    """Write a pipeline as another engine's YAML."""
    cli_export.export(pipeline=pipeline, to=to, image=image, volume=volume, gpu=gpu, secret=secret, out=out)


namespace = Collection(show, runs, compare, rm, report, graph, replay, export)
