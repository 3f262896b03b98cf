"""What pydantic finds, as a person reads it: at the key that is wrong, and with what to write."""

from __future__ import annotations

from typing import Any

import pytest

from dflash.document import parse
from dflash.errors import ConfigError
from dflash.pipeline.command import CommandConfig
from dflash.training.config import TargetConfig, TrainConfig
from dflash.training.dataconfig import DataConfig
from dflash.validation import validated


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (TrainConfig, "seed: 1\nrows: 0", "2:7: rows must be at least 1, not 0"),
        (TrainConfig, "topology:\n  targets: 1\n  drafters: -1", "3:13: drafters must be at least 1, not -1"),
        (TrainConfig, "steps: 5\ndraft: {layers: 2, block: 1}", "2:27: block must be at least 2, not 1"),
        (TrainConfig, "evaluate_every: -1", "1:17: evaluate_every must be at least 0, not -1"),
        (TargetConfig, "rows: 4\nwindow: 8", "2:9: window must be at least 16, not 8"),
        (DataConfig, "block: 8\nheldout: 0", "2:10: heldout must be at least 1, not 0"),
        (TrainConfig, "rows: '2'", '1:7: must be a valid integer, not "2"; a number has no quotes'),
        (
            TrainConfig,
            "compile: 'no'",
            '1:10: must be a valid boolean, not "no"; true or false is written without quotes',
        ),
        (TrainConfig, "topology: true", "1:11: must be a map, not true; its keys are targets, drafters, target_gpus"),
        (CommandConfig, "argv: [echo, 1]", '1:14: must be a valid string, not 1; put it in quotes: "1"'),
        (CommandConfig, "argv: echo", '1:7: must be a list, not "echo"; put it in brackets: [echo]'),
        (CommandConfig, "argv: []", "1:7: argv must begin with a program: [echo, hello]"),
    ],
)
def test_a_value_that_is_wrong_is_named_at_its_key_with_what_to_write(kind: Any, text: str, says: str):
    with pytest.raises(ConfigError) as caught:
        validated(kind, parse(text, "x.yaml"))
    assert str(caught.value) == f"x.yaml:{says}"
