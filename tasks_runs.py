"""The verbs that look at runs, which tasks.py collects."""

from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import task

from dflash import cli, cli_runs
from dflash.cli_help import helped


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


namespace = Collection(show, runs)
