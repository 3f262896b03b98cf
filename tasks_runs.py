"""The verbs that look at runs, which tasks.py collects."""

from collections.abc import Sequence

from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import task

from dflash import cli, cli_replay
from dflash.cli_help import HELP, helped


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


namespace = Collection(replay)
