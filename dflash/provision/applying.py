"""Plan a host and make it so. The thin edge: reads facts, runs actions, tells what happens."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.errors import BusyError, DFlashError
from dflash.hosts.chain import Chain, Sudo
from dflash.hosts.command import Command
from dflash.hosts.connection import Connection
from dflash.hosts.failures import ContainerMissing, ContainerStopped, HostError, NoPython, ProgramMissing
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from dflash.provision.bare import PACKAGE, install_python
from dflash.provision.busy import ends_work, running_jobs
from dflash.provision.declaration import MachineSpec
from dflash.provision.fact import MISSING, Facts, read
from dflash.provision.facts.users import LOGIN, Login
from dflash.provision.failures import ActionFailed
from dflash.provision.operation import Action, Change, Kept
from dflash.provision.planning import Declared, Named, Refused, Stage, Step, lines_of, plan_of, planned, stages

Tell = Callable[[str], object]
Busy = Callable[[Sequence[Step]], Iterable[BusyError]]


@dataclass(frozen=True)
class Provisioned:
    """What became of one machine: its layer, and what was done, kept, or, in a preview, would be."""

    layer: str
    steps: tuple[Step, ...]

    @property
    def changes(self) -> int:
        """How many things were, or would be, changed."""
        return sum(isinstance(step.outcome, Change) for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"layer": self.layer, "steps": [_plain(step) for step in self.steps]}


def provision(
    host: Host, spec: MachineSpec, *, only: Sequence[str] = (), preview: bool = False, tell: Tell = lambda line: None
) -> list[Provisioned]:
    """Make `host` what `spec` declares, machine by machine; with `preview`, only say what that would change.

    `tell` gets the plan of each machine before it is changed, and each change as it begins.

    Raises:
        UsageError: the declaration does not fit the chain.
        BusyError: a container would be stopped, and a job runs in it.
        ActionFailed: a command of a change ended badly.
        HostError: a machine can not be reached, or nobody may be root there.
        DFlashError: something can not be made so, as its operation says.
    """
    done: list[Provisioned] = []
    for stage in stages(host, spec, only):
        if not stage.operations(_NOBODY):
            continue
        if not preview:
            done.append(_applied(stage, host, tell))
            continue
        remade = any(isinstance(step.outcome, Change) and step.name == "container" for step in _steps(done))
        try:
            done.append(_previewed(stage, tell, first=remade))
            for busy in _busy(host, done[-1].steps):
                tell(f"{stage.chain} would refuse: {busy}")
        except (ContainerMissing, ContainerStopped):
            if not remade:
                raise
            done.append(_as_declared(stage, tell, "the container is made first"))
    return done


def refusals(done: Iterable[Provisioned]) -> list[DFlashError]:
    """Why parts of a preview can not be made so."""
    return [step.outcome.error for step in _steps(done) if isinstance(step.outcome, Refused)]


def _previewed(stage: Stage, tell: Tell, *, first: bool) -> Provisioned:
    """`first`: something is done on the way to this machine first."""
    try:
        with _Machine(stage.chain) as machine:
            operations = stage.operations(machine.login)
            return machine.told(planned(operations, machine.known(operations), first=first), tell)
    except NoPython as failure:
        if "no python3" not in failure.what:
            raise
        return _as_declared(stage, tell, "python3 is installed first", (_bare_step(),))


def _busy(host: Host, steps: Iterable[Step]) -> Iterator[BusyError]:
    """Why `steps` may not be done now: one for each job of `host` whose container they stop."""
    if any(step.name == "container" and isinstance(step.outcome, Change) and ends_work(step.outcome) for step in steps):
        for job in running_jobs(host):
            what = f"job {job.id} runs in the container, which would be stopped"
            cure = f"wait until it has ended, or end it: ./inv stop {job.id} --host {host.name}"
            yield BusyError(what, where=host.name, cure=cure)


def _applied(stage: Stage, host: Host, tell: Tell) -> Provisioned:
    first: list[Step] = []
    try:
        opened = _Machine(stage.chain)
    except NoPython as failure:
        if "no python3" not in failure.what:
            raise
        first = [_bare_step()]
        _tell_steps(first, str(stage.chain), tell)
        tell(f"{stage.chain} installing {PACKAGE}")
        install_python(stage.chain)
        opened = _Machine(stage.chain)
    with opened as machine:
        operations = stage.operations(machine.login)
        made = machine.apply(operations, tell, lambda steps: _busy(host, steps))
    return Provisioned(made.layer, (*first, *made.steps))


class _Machine:
    """One machine of a chain, reached, as root where we may be."""

    def __init__(self, chain: Chain) -> None:
        """Reach the end of `chain`, as root by sudo where one logs in as somebody else. Where sudo refuses, what there
        is can still be read, as far as that user may; why it refused is said when something must be changed."""
        self.layer = str(chain)
        self._refusal: HostError | None = None
        self._did: list[str] = []
        with contextlib.ExitStack() as stack:
            self._own: Connection = stack.enter_context(reach(chain))
            self._connection = self._own
            login = read(self._own, [LOGIN])[LOGIN]
            if login is None:
                cure = "try `id` there: a directory of users may not answer"
                raise HostError("it does not say as whom one logs in", layer=self.layer, cure=cure)
            self.login = login
            if self.login.uid != 0:
                try:
                    self._connection = stack.enter_context(reach(Chain((*chain.hops, Sudo()))))
                except HostError as failure:
                    self._refusal = failure
            self._open = stack.pop_all()

    def __enter__(self) -> _Machine:
        return self

    def __exit__(self, *failure: object) -> None:
        self._open.close()

    def known(self, operations: Iterable[Named]) -> Facts:
        """Everything that the operations must know, in one round trip."""
        return read(self._connection, [fact for each in operations for fact in each.operation.facts()])

    def told(self, steps: Sequence[Step], tell: Tell) -> Provisioned:
        """The steps, after telling them."""
        _tell_steps(steps, self.layer, tell)
        return Provisioned(self.layer, tuple(steps))

    def apply(self, operations: Sequence[Named], tell: Tell, busy: Busy = lambda steps: ()) -> Provisioned:
        """Plan all, tell it, and then do it in order; each operation is planned anew once anything has changed. In the
        end those that changed something must have nothing left to do. What is `busy` refuses."""
        known = self.known(operations)
        for refusal in busy(self.told(planned(operations, known), tell).steps):
            raise refusal
        steps: list[Step] = []
        changed: list[Named] = []
        for each in operations:
            for outcome in self._planned(each, self.known([each]) if changed else known):
                steps.append(Step(each.name, outcome))
                if isinstance(outcome, Change):
                    for refusal in busy(steps[-1:]) if changed else ():  # it may have come up only now
                        refusal.what += self._done_before()
                        raise refusal
                    self._change(outcome, tell)
                    changed += [each] if each not in changed else []
        self._prove(changed)
        return Provisioned(self.layer, tuple(steps))

    def _planned(self, each: Named, known: Facts) -> list[Change | Kept]:
        try:
            return plan_of(each, known)
        except DFlashError as failure:
            failure.where = f"{self.layer} {each.subject}"
            failure.what += self._done_before()
            raise

    def _done_before(self) -> str:
        return f"; done before: {', '.join(self._did)}" if self._did else ""

    def _change(self, change: Change, tell: Tell) -> None:
        if self._refusal and any(action.root for action in change.actions):
            what = f"{change.subject}: this needs root, and {self._refusal.what}"
            raise ActionFailed(what, where=self.layer, cure="log in as root, or allow the user sudo with NOPASSWD")
        for action in change.actions:
            tell(f"{self.layer} {change.subject}: {_shown(action)}")
            status, said = self._run(action)
            if status:
                raise ActionFailed(self._account(change, action, status, said), where=self.layer, cure=_AGAIN)
        self._did.append(change.subject)

    def _run(self, action: Action) -> tuple[int, str]:
        """The status of an action, as a shell would give it, and all that it said."""
        command = Command(action.argv, env={"LC_ALL": "C"})
        connection = self._connection if action.root else self._own
        with contextlib.ExitStack() as stack:
            stdin = stack.enter_context(action.file.open("rb")) if action.file else action.stdin
            try:
                result = connection.execute(command, stdin=stdin)
            except ProgramMissing as failure:
                return MISSING, failure.what
        return result.code, (result.stdout + result.stderr).decode(errors="replace")

    def _account(self, change: Change, action: Action, status: int, said: str) -> str:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        last = f", saying: {' / '.join(lines[-2:])}" if lines else ""
        return f"{change.subject}: {_shown(action)} ended with {status}{last}{self._done_before()}"

    def _prove(self, changed: Sequence[Named]) -> None:
        if not changed:
            return
        known = self.known(changed)
        for each in changed:
            for outcome in plan_of(each, known):
                if isinstance(outcome, Change):
                    what = f"{outcome.subject}: its commands ended well, and it still is: {outcome.before}"
                    raise ActionFailed(what, where=self.layer, cure="look there what keeps it from being so")


_NOBODY = Login(0, "root", "~")
"""Who is taken to log in where that is not known."""

_AGAIN = "what was done stays; put this right there, and the same command goes on from here"


def _bare_step() -> Step:
    return Step("python", Change("python3", "absent", f"{PACKAGE}, for the agent", ()))


def _as_declared(stage: Stage, tell: Tell, why: str, first: tuple[Step, ...] = ()) -> Provisioned:
    """A machine of which nothing can be read yet."""
    steps = (*first, *(Step(each.name, Declared(each.subject)) for each in stage.operations(_NOBODY)))
    tell(f"{stage.chain}: {why}")
    _tell_steps(steps, str(stage.chain), tell)
    return Provisioned(str(stage.chain), steps)


def _tell_steps(steps: Iterable[Step], layer: str, tell: Tell) -> None:
    for step in steps:
        for line in lines_of(step, layer):
            tell(line)


def _steps(done: Iterable[Provisioned]) -> list[Step]:
    return [step for each in done for step in each.steps]


def _shown(action: Action) -> str:
    """A command as a person would type it; a script of ours by its arguments alone."""
    words = ("sh", "…", *action.argv[4:]) if action.argv[:2] == ("sh", "-c") else action.argv
    return " ".join(word if word == "…" else shlex.quote(word) for word in words)


def _plain(step: Step) -> dict[str, str]:
    outcome = step.outcome
    told = {"operation": step.name, "subject": outcome.subject, "state": type(outcome).__name__.lower()}
    match outcome:
        case Change():
            told |= {"before": outcome.before, "after": outcome.after}
        case Kept():
            told["why"] = outcome.why
        case Refused():
            told["why"] = str(outcome.error)
    return told


def apply(chain: Chain, operations: Sequence[Named], tell: Tell) -> Provisioned:
    """Make the machine at the end of `chain` have what `operations` say, beside any declaration.

    Raises:
        ActionFailed, HostError, DFlashError: as `provision`.
    """
    with _Machine(chain) as machine:
        return machine.apply(operations, tell)
