"""What a person sees while steps run: a bar on a terminal, calm lines elsewhere. Always on standard error."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from dflash.pipeline.policy import LEFT_OUT

if TYPE_CHECKING:
    from rich.console import Group

_LINE_INTERVAL_S = 5.0
_BAR = 12  # columns

IDLE = ("skipped", "blocked", LEFT_OUT)
"""What becomes of a step that does not run: its reason tells more than its time."""


class View(Protocol):
    """Receives what happens in a run; a context manager around all of it. `begun` has all steps' names, in their
    order, and `said` the last lines of a step's log when it has grown."""

    def __enter__(self) -> View: ...

    def __exit__(self, *failure: object) -> None: ...

    def begun(self, steps: Sequence[str]) -> None: ...

    def started(self, step: str, status: str, why: Sequence[str]) -> None: ...

    def progress(self, step: str, done: int, total: int, metrics: Mapping[str, Any]) -> None: ...

    def note(self, step: str, message: str) -> None: ...

    def said(self, step: str, lines: Sequence[str]) -> None: ...

    def finished(self, step: str, status: str, seconds: float, why: Sequence[str]) -> None: ...


def view_for(stream: TextIO) -> View:
    """A bar when `stream` is a terminal, else lines."""
    if stream.isatty():
        return Bar(stream)
    return Lines(stream)


class Lines:
    """One line at a start, an end and a note, and for progress the first, the last and one each 5 s."""

    def __init__(self, stream: TextIO, interval_s: float = _LINE_INTERVAL_S) -> None:
        self._stream, self._interval_s = stream, interval_s
        self._eta = Eta()
        self._shown = float("-inf")
        self._held = ""

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *failure: object) -> None:
        pass

    def begun(self, steps: Sequence[str]) -> None:
        pass

    def started(self, step: str, status: str, why: Sequence[str]) -> None:
        self._say(step, f"{'goes on' if status == 'resume' else 'starts'}: {short_why(why)}")
        self._eta, self._shown, self._held = Eta(), float("-inf"), ""

    def progress(self, step: str, done: int, total: int, metrics: Mapping[str, Any]) -> None:
        left = self._eta.left(done, total)
        line = "  ".join(filter(None, [f"{done}/{total}", figures(metrics), f"{clock(left)} left" * (left > 0)]))
        if time.monotonic() - self._shown >= self._interval_s:
            self._shown, self._held = time.monotonic(), ""
            self._say(step, line)
        else:
            self._held = line

    def note(self, step: str, message: str) -> None:
        self._say(step, message)

    def said(self, step: str, lines: Sequence[str]) -> None:
        pass  # its log has them

    def finished(self, step: str, status: str, seconds: float, why: Sequence[str]) -> None:
        if self._held:
            self._say(step, self._held)
            self._held = ""
        if status in IDLE:
            self._say(step, f"{status}: {short_why(why)}")
        else:
            self._say(step, f"{status} after {clock(seconds)}")

    def _say(self, step: str, text: str) -> None:
        print(f"{step:<10} {text}", file=self._stream, flush=True)


class Bar:
    """A progress bar for the step at work, with its figures, and the last lines of its log below it; finished steps
    stay as lines above."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
        from rich.table import Column

        self._lines: Sequence[str] = ()
        self._places: dict[str, str] = {}
        self._console = Console(file=stream, highlight=False)
        whole = Column(no_wrap=True, overflow="ignore")
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[place]}", style="dim", table_column=whole),
            TextColumn("[bold]{task.description:<10}", markup=True, table_column=whole),
            BarColumn(bar_width=_BAR, table_column=Column(min_width=_BAR)),
            TextColumn("{task.fields[count]}", table_column=whole),
            TextColumn("{task.fields[left]}", table_column=whole),
            TextColumn("{task.fields[figures]}", markup=False, table_column=whole),
            console=self._console,
        )
        self._live = Live(
            get_renderable=self._drawn,
            console=self._console,
            refresh_per_second=10,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task: Any = None
        self._eta = Eta()

    def __enter__(self) -> Bar:
        self._live.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._live.stop()

    def begun(self, steps: Sequence[str]) -> None:
        self._places = {step: f"{number}/{len(steps)}" for number, step in enumerate(steps, 1)}

    def started(self, step: str, status: str, why: Sequence[str]) -> None:
        self._eta, self._lines = Eta(), ()
        verb = "goes on" if status == "resume" else "starts"
        self._console.print(f"{step:<10} {verb}: {short_why(why)}", markup=False, style="dim")
        place = self._places.get(step, "")
        self._task = self._bar.add_task(step, total=None, count="", figures="", left="", place=place)

    def progress(self, step: str, done: int, total: int, metrics: Mapping[str, Any]) -> None:
        left = self._eta.left(done, total)
        count, ends = f"{done}/{total}", f"{clock(left)} left" if left else ""
        # On a narrow terminal only the figures give way: rich would shorten every column alike.
        place = self._places.get(step, "")
        room = self._console.width - len(f"* {place} {step:<10}  {count} {ends} ") - _BAR
        self._bar.update(
            self._task, completed=done, total=total, count=count, figures=shortened(figures(metrics), room), left=ends
        )

    def note(self, step: str, message: str) -> None:
        self._console.print(f"{step:<10} {message}", markup=False)

    def said(self, step: str, lines: Sequence[str]) -> None:
        self._lines = lines

    def _drawn(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        below = [Text(f"  {line}", style="dim", no_wrap=True, overflow="ellipsis") for line in self._lines]
        return Group(self._bar, *below)

    def finished(self, step: str, status: str, seconds: float, why: Sequence[str]) -> None:
        self._lines = ()
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
        tail = short_why(why) if status in IDLE else clock(seconds)
        style = {"ok": "green", "skipped": "dim", LEFT_OUT: "dim"}.get(status, "red")
        self._console.print(f"{step:<10} {status}: {tail}", markup=False, style=style)


class Eta:
    """Time left, from the pace since the first progress: a resumed step does not start from nothing."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None

    def left(self, done: int, total: int) -> float:
        """Seconds, or 0 when that can not be told yet."""
        now = time.monotonic()
        if self._first is None:
            self._first = (done, now)
        since, start = self._first
        return (now - start) / (done - since) * (total - done) if done > since else 0.0


def figures(metrics: Mapping[str, Any]) -> str:
    """Metrics as a person reads them: `loss 2.31  accuracy .61 .48 .33  1.2k tokens/s`."""
    return "  ".join(_figure(name, value) for name, value in metrics.items())


def _figure(name: str, value: Any) -> str:
    label = name.replace("_per_s", "/s").replace("_", " ")
    if isinstance(value, list | tuple):
        shares = (f"{each:.2f}".removeprefix("0") if isinstance(each, int | float) else "-" for each in value)
        return f"{label} {' '.join(shares)}"
    if name.endswith("_per_s") and isinstance(value, int | float):
        return f"{value / 1000:.1f}k {label}" if value >= 1000 else f"{value:.0f} {label}"
    return f"{label} {value:.4g}" if isinstance(value, float) else f"{label} {value}"


def shortened(text: str, room: int) -> str:
    """`text`, or as much of it as `room` columns hold, with an ellipsis."""
    return text if len(text) <= room else text[: room - 1] + "…" if room > 0 else ""


def short_why(why: Sequence[str]) -> str:
    """The first reason, and how many more there are."""
    return why[0] + (f" (and {len(why) - 1} more)" if len(why) > 1 else "") if why else ""


def clock(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3:07` or `1:02:03`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
