"""The verbs that look at runs, which tasks.py collects."""

from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import task

from dflash import cli, cli_export, cli_runs
from dflash.cli_help import HELP, helped


@task(auto_shortflags=False, help=helped("run", "root", "json"))
@cli.verb
def show(context: Context, run: str = "", root: str = "", json: bool = False) -> None:
    """Show a run: its figures, and what each step did and why."""
    cli_runs.show(run=run, root=root, as_json=json)


@task(auto_shortflags=False, help=helped("root", "json"))
@cli.verb
def runs(context: Context, root: str = "", json: bool = False) -> None:
    """List the runs, oldest first."""
    cli_runs.runs(root=root, as_json=json)


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


namespace = Collection(show, runs, export)
