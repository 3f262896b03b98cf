"""`./inv bench pipeline`: what the runner itself costs, what planning does, and how soon a long run's report opens.

Runs of few and of many steps that each run `true`, in a process of its own: what one step more takes is the runner's,
but for starting that program, and what is left of a run is its beginning and end. Folders, records and events are
written durably, as always. Each number of steps has a root of its own; medians.
"""

from __future__ import annotations

import io
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.parts.planning import planning
from benchmarks.parts.report import report
from dflash.hosts.chain import Chain, Local
from dflash.hosts.inventory import Host
from dflash.pipeline.keys import observe
from dflash.pipeline.kinds import load_kinds
from dflash.pipeline.plan import make_plan
from dflash.pipeline.run import execute
from dflash.pipeline.schema import load_pipeline
from dflash.pipeline.store import Store
from dflash.pipeline.view import Lines

FEW, MANY, ROUNDS = 5, 45, 5

_STEP = """\
  - name: step-{number}
    uses: command
    needs: [{needs}]
    with: {{argv: ["true", "{number}"]}}
"""


def measure() -> dict[str, float]:
    """Milliseconds: `step_ms` for each step that runs, `skipped_ms` for each that is finished already, `run_ms` for a
    run besides its steps; `python_ms` for starting a Python that does nothing, to compare. `plan_1000_s`: seconds for
    planning a thousand steps. `report_`: what report.py says of a training that logged ten million rows."""
    rounds = [_round() for _ in range(ROUNDS)]
    figures = {name: round(statistics.median(each[name] for each in rounds), 1) for name in rounds[0]}
    reported = {f"report_{name}": value for name, value in report().items()}
    return {**figures, "plan_1000_s": round(planning(1000), 2), **reported}


def _round() -> dict[str, float]:
    few, few_again = _runs(FEW)
    many, many_again = _runs(MANY)
    step, skipped = (many - few) / (MANY - FEW), (many_again - few_again) / (MANY - FEW)
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    python_s = time.perf_counter() - begun
    seconds = {"step": step, "skipped": skipped, "run": few - FEW * step, "python": python_s}
    return {f"{name}_ms": 1000 * each for name, each in seconds.items()}


def _runs(steps: int) -> tuple[float, float]:
    """Seconds of a run of so many steps, and of another that has nothing to do."""
    with tempfile.TemporaryDirectory(prefix="dflash-bench-") as folder:
        root = Path(folder)
        needs = ["", *(f"step-{number}" for number in range(steps - 1))]
        entries = (_STEP.format(number=number, needs=need) for number, need in enumerate(needs))
        (root / "pipeline.yaml").write_text(f"name: bench\nsteps:\n{''.join(entries)}")
        return _run(root), _run(root)


def _run(root: Path) -> float:
    pipeline = load_pipeline(root / "pipeline.yaml", load_kinds())
    here = Host("local", Chain((Local(),)), str(root))
    plan = make_plan(pipeline, here, observe(pipeline), Store(root))
    begun = time.perf_counter()
    outcome = execute(plan, root, Lines(io.StringIO()))
    assert outcome.exit_code == 0, outcome.failure
    return time.perf_counter() - begun
