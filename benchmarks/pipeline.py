"""`./inv bench pipeline`: what the runner itself costs a step.

A run of steps that each run `true`, in a process of its own: all that it takes is the runner's, but for starting that
program. Its folder, the record and the events are written durably, as always. Medians of several runs, each in a root
of its own, in milliseconds a step.
"""

from __future__ import annotations

import io
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.pipeline_planning import planning
from dflash.hosts.chain import Chain, Local
from dflash.hosts.inventory import Host
from dflash.pipeline.keys import observe
from dflash.pipeline.kinds import load_kinds
from dflash.pipeline.plan import make_plan
from dflash.pipeline.run import execute
from dflash.pipeline.schema import load_pipeline
from dflash.pipeline.store import Store
from dflash.pipeline.view import Lines

STEPS, ROUNDS = 20, 5

_STEP = """\
  - name: step-{number}
    uses: command
    needs: [{needs}]
    with: {{argv: ["true", "{number}"]}}
"""


def measure() -> dict[str, float]:
    """`step_ms`: of a step that runs; `skipped_ms`: of one that is finished already; `python_ms`: of starting a Python
    that does nothing, for comparison."""
    rounds = [_round() for _ in range(ROUNDS)]
    figures = {name: round(statistics.median(each[name] for each in rounds), 1) for name in rounds[0]}
    return {**figures, "plan_1000_s": round(planning(1000), 2)}


def _round() -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="dflash-bench-") as folder:
        root = Path(folder)
        needs = ["", *(f"step-{number}" for number in range(STEPS - 1))]
        steps = (_STEP.format(number=number, needs=need) for number, need in enumerate(needs))
        (root / "pipeline.yaml").write_text(f"name: bench\nsteps:\n{''.join(steps)}")
        figures = {"step_ms": _run(root), "skipped_ms": _run(root)}
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return {**figures, "python_ms": 1000 * (time.perf_counter() - begun)}


def _run(root: Path) -> float:
    """Milliseconds a step of a run."""
    pipeline = load_pipeline(root / "pipeline.yaml", load_kinds())
    here = Host("local", Chain((Local(),)), str(root))
    plan = make_plan(pipeline, here, observe(pipeline), Store(root))
    begun = time.perf_counter()
    outcome = execute(plan, root, Lines(io.StringIO()))
    assert outcome.exit_code == 0, outcome.failure
    return 1000 * (time.perf_counter() - begun) / STEPS
