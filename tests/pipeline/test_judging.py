"""What is read to judge a replay."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from dflash.pipeline.keys import HOME

_JUDGE = """
import resource, sys
from pathlib import Path
from dflash.pipeline.judging import made_by
from dflash.pipeline.verdict import judged
root = Path(sys.argv[1])
def record(name):
    step = {"name": "train", "kind": "train", "status": "ok", "folder": f"work/train/{name}"}
    return {"id": name, "status": "ok", "steps": [step], "provenance": {"metrics": {}, "artifacts": {}}}
one, other, third = (made_by(root, record(name)) for name in ("a", "b", "c"))
found = judged(one, other, [], [third])
print(found.rows, found.kind, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000)
"""


def judged(root: Path, count: int) -> tuple[int, str, int]:
    """Rows, kind and the peak memory in MB of judging three logs of as many rows, in a process of its own."""
    for place, name in enumerate("abc"):
        file = root / "work" / "train" / name / "metrics.jsonl"
        file.parent.mkdir(parents=True)
        with file.open("w") as log:
            for step in range(count):
                accuracy = [0.5 / (slot + 1) for slot in range(15)]
                log.write(json.dumps({"step": step, "loss": 1.0 + place * 1e-9, "accuracy": accuracy}) + "\n")
    words = [sys.executable, "-B", "-c", _JUDGE, str(root)]
    told = subprocess.run(words, cwd=HOME, capture_output=True, text=True, check=True).stdout.split(" ")
    return int(told[0]), " ".join(told[1:-1]), int(told[-1])


def test_judging_long_logs_takes_the_memory_of_judging_short_ones(tmp_path: Path):
    rows, kind, short_mb = judged(tmp_path / "short", 10)
    assert (rows, kind) == (10, "within noise")
    rows, kind, long_mb = judged(tmp_path / "long", 10_000)
    assert (rows, kind) == (10_000, "within noise")
    assert long_mb < short_mb + 5
