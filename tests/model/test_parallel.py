"""A target that is spread over several processes gives what the whole one gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, Qwen3Config

from dflash.errors import UsageError
from dflash.model.parallel import refuse_uneven
from tests.model.test_target import KINDS
from tests.tiny import randomize

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.nightly
def test_two_processes_hold_half_of_a_target_each_and_give_its_whole_states(tmp_path: Path):
    for kind, config in KINDS.items():
        model = AutoModelForCausalLM.from_config(config)
        randomize(model, 0)
        model.save_pretrained(tmp_path / kind)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["tests/model/spread.py", *(str(tmp_path / kind) for kind in KINDS)]
    settings = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sorted(each["kind"] for each in told) == sorted([*KINDS, *KINDS])
    for each in told:
        assert each["apart"] < 1e-5, each
        assert each["held"] < 0.55, each


def test_heads_that_can_not_be_shared_out_are_refused_by_name():
    config = Qwen3Config(num_attention_heads=8, num_key_value_heads=2, hidden_size=64)
    refuse_uneven(config, 2)
    complaint = "4 GPUs can not share the target's 2 num_key_value_heads evenly; choose a divisor of 2"
    with pytest.raises(UsageError, match=complaint):
        refuse_uneven(config, 4)
