"""Ask peers, each in its own environment, what they make of an export; and what is kept of their answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from tests.peers.learnt import NEW_TOKENS, PROMPTS, Pair

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
RECORDS = REPOSITORY / "tests" / "data" / "peers"
Answer = dict[str, Any]

PUBLISH = (
    "import sys; from pathlib import Path; from dflash.model.layout import publish; publish(*map(Path, sys.argv[1:]))"
)


def run(words: Sequence[str | Path], home: Path, request: Answer | None = None, **more: str) -> str:
    """What a program prints, given `request` as JSON. It finds no network, and leaves what it caches in `home`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHON"))}
    environment |= {"HF_HOME": str(home / "cache"), "HF_HUB_OFFLINE": "1", **more}
    text = json.dumps(request)
    done = subprocess.run(words, cwd=home, env=environment, input=text, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def published(pair: Pair, home: Path) -> Pair:
    """The same with a drafter that has been published and proved, as the pipeline's last step does it."""
    out = home / "published"
    out.mkdir()
    run([sys.executable, "-c", PUBLISH, pair.export, out], home, PYTHONPATH=str(REPOSITORY))
    return Pair(pair.target, out)


def ask_zlab(
    python: Path,
    pair: Pair,
    home: Path,
    dtype: str = "float64",
    prompts: Sequence[Sequence[int]] = PROMPTS,
    new_tokens: int = NEW_TOKENS,
) -> tuple[Answer, Tensor]:
    """What `zlab.py` prints, and the draft hidden states (1, block, H) of one block after the first prompt."""
    hidden = home / "hidden.safetensors"
    request = {"dtype": dtype, "prompts": prompts, "new_tokens": new_tokens}
    said = run([python, "-I", HERE / "zlab.py", pair.export, pair.target, hidden], home, request)
    return json.loads(said), load_file(hidden)["hidden"]


def convert(python: Path, pair: Pair, home: Path) -> Path:
    """The folder that speculators' own command makes of the export, and validates."""
    out = home / "converted"
    words = [python, "-I", "-m", "speculators", "convert", pair.export, "--verifier", pair.target]
    run([*words, "--algorithm", "dflash", "--output-path", out, "--validate-device", "cpu"], home)
    return out


def ask_speculators(
    python: Path, pair: Pair, home: Path, converted: Path, text: list[int], first: int
) -> tuple[Answer, dict[str, Tensor]]:
    """What `speculating.py` prints and computes for `text`, whose tokens are trained on from `first` on."""
    tensors = home / "speculating.safetensors"
    request = {"dtype": "float64", "text": text, "first": first}
    said = run([python, "-I", HERE / "speculating.py", converted, pair.target, tensors], home, request)
    return json.loads(said), load_file(tensors)


def given(export: Path) -> Answer:
    """What the peers were given: the fields of the configuration and the tensors' shapes."""
    fields = json.loads((export / "config.json").read_text(encoding="utf-8"))
    del fields["transformers_version"]
    tensors = load_file(export / "model.safetensors")
    return {"config": fields, "tensors": {name: list(tensors[name].shape) for name in sorted(tensors)}}


def recorded(name: str) -> Answer:
    """What is kept of `name`: `given`, `dflash` or `speculators`."""
    answer: Answer = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    return answer


def keep(name: str, answer: Answer) -> None:
    """Record an answer."""
    RECORDS.mkdir(parents=True, exist_ok=True)
    (RECORDS / f"{name}.json").write_text(json.dumps(answer, indent=1, sort_keys=True) + "\n", encoding="utf-8")
