"""How long planning takes: a pipeline's file is read and checked, surroundings are observed, every step is decided."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from dflash.hosts.chain import Chain, Local
from dflash.hosts.inventory import Host
from dflash.pipeline.keys import observe
from dflash.pipeline.kinds import load_kinds
from dflash.pipeline.plan import make_plan
from dflash.pipeline.schema import load_pipeline
from dflash.pipeline.store import Store

_CHAIN = """\
  - {{name: target{n}, uses: target, needs: [check], {matrix}with: {{seed: {seed}}}}}
  - {{name: data{n}, uses: data, needs: [target{n}], with: {{prompts: 64, buckets: [384], block: 8}}}}
  - {{name: prewarm{n}, uses: prewarm, needs: [target{n}, data{n}], with: {{for_step: train{n}}}}}
  - name: train{n}
    uses: train
    needs: [target{n}, data{n}, prewarm{n}]
    retry: {{attempts: 3, on: [timeout, lost_connection]}}
    timeout: 4h
    with: {{draft: {{layers: 2, features: 3, block: 8, mask_token_id: 260}}, steps: 400, seed: {n}}}
  - {{name: evaluate{n}, uses: evaluate, needs: [target{n}, data{n}, train{n}], when: host.gpus == 0}}
  - {{name: export{n}, uses: export, needs: [train{n}]}}
"""
_STEPS = 6  # of a chain


def pipeline_of(steps: int) -> str:
    """A pipeline of about that many steps of the real kinds: half of them by a matrix, half declared one by one."""
    chains = max(2, round(steps / _STEPS))
    alone = chains // 2
    parts = ["name: many\nsteps:\n  - {name: check, uses: check}\n"]
    parts += [_CHAIN.format(n=number, matrix="", seed=number % 4) for number in range(1, alone + 1)]
    values = list(range(chains - alone))
    parts.append(_CHAIN.format(n=0, matrix=f"matrix: {{seed: {values}}}, ", seed='"${{ matrix.seed }}"'))
    return "".join(parts)


def planning(steps: int) -> float:
    """Seconds that planning a pipeline of about `steps` steps takes in an empty root, its file included."""
    host = Host("local", Chain((Local(),)))
    kinds = load_kinds()
    with tempfile.TemporaryDirectory(prefix="dflash-plan-") as folder:
        file = Path(folder) / "many.yaml"
        file.write_text(pipeline_of(steps), encoding="utf-8")
        began = time.perf_counter()
        pipeline = load_pipeline(file, kinds)
        plan = make_plan(pipeline, host, observe(pipeline), Store(Path(folder)))
        took = time.perf_counter() - began
    assert abs(len(plan.steps) - steps) <= _STEPS
    return took


if __name__ == "__main__":
    print(f"1,000 steps: {planning(1000):.2f} s")
