"""The JSON Schema for editors says of a pipeline's file what its own checks say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dflash.document import load, parse
from dflash.pipeline.editors import FILE, published, text_of
from dflash.pipeline.keys import HOME
from dflash.pipeline.kinds import load_kinds
from dflash.pipeline.schema import load_pipeline
from tests.pipeline.test_matrix import MATRIX

KINDS = load_kinds()
SCHEMA = json.loads(FILE.read_text(encoding="utf-8"))
TRAIN = """\
name: x
steps:
  - {name: check, uses: check}
  - {name: target, uses: target}
  - {name: data, uses: data, needs: [target]}
  - {name: prewarm, uses: prewarm, needs: [target, data], with: {for_step: train}}
  - name: train
    uses: train
    needs: [target, data, prewarm]
    retry: {attempts: 3, on: [timeout, lost_connection, 75], backoff: 1m}
    timeout: 4h
    launcher: {kind: torchrun, hosts: [a, b]}
    matrix: {seed: [1, 2]}
    when: host.gpus > 0
    env: {OMP_NUM_THREADS: 4}
    with: {seed: "${{ matrix.seed }}", topology: {targets: 1, drafters: 2}}
finally:
  - {name: tidy, uses: check, when: failed, retry: 2, secrets: [HF_TOKEN]}
"""


def accepted(data: Any) -> bool:
    return jsonschema.Draft202012Validator(SCHEMA).is_valid(data)


def test_it_is_a_schema_and_up_to_date():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    hint = "make it again: python -m dflash.pipeline.editors"
    assert FILE.read_text(encoding="utf-8") == text_of(KINDS), hint


@pytest.mark.parametrize("file", sorted((HOME / "pipelines").glob("*.yaml")), ids=lambda file: file.name)
def test_it_accepts_every_pipeline_that_is_shipped_and_each_names_it(file: Path):
    assert accepted(load(file).data)
    first = file.read_text(encoding="utf-8").partition("\n")[0]
    assert first == f"# yaml-language-server: $schema={FILE.name}"


def test_it_accepts_all_that_a_step_may_declare(tmp_path: Path):
    file = tmp_path / "pipeline.yaml"
    file.write_text(TRAIN)
    assert load_pipeline(file, KINDS).steps[-1].is_last
    assert accepted(load(file).data)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: x", "name: X y"),
        ("uses: train", "uses: trian"),
        ("timeout: 4h", "timeout: 4 hours"),
        ("timeout: 4h", "timout: 4h"),
        ("lost_connection", "lost"),
        ("attempts: 3", "attempts: 0"),
        ("retry: 2", "retry: 2.5"),
        ("kind: torchrun, hosts", "kind: torchrun, nodes"),
        ("kind: torchrun", "kind: mpi"),
        ("OMP_NUM_THREADS: 4", "OMP_NUM_THREADS: true"),
        ("HF_TOKEN", "hf token"),
        ("seed: [1, 2]", "seed: 1"),
        ("targets: 1", "targets: one"),
        ("targets: 1", "target: 1"),
        ('seed: "${{ matrix.seed }}"', "seed: text"),
        ("for_step: train", "for_steps: train"),
        (", with: {for_step: train}", ""),
        ("name: tidy, uses: check,", "name: tidy, uses: check, launcher: threads,"),
    ],
)
def test_it_refuses_what_the_files_own_checks_refuse(tmp_path: Path, old: str, new: str):
    file = tmp_path / "pipeline.yaml"
    file.write_text(TRAIN.replace(old, new, 1))
    assert not accepted(load(file).data)
    with pytest.raises(Exception, match=r"pipeline.yaml:\d+:\d+: "):
        load_pipeline(file, KINDS)


def test_it_holds_the_config_of_each_kind_that_there_is():
    from tests.pipeline.sample_kinds import KINDS as SAMPLE

    schema = published(SAMPLE)
    assert jsonschema.Draft202012Validator(schema).is_valid(parse(MATRIX, "grid.yaml").data)
    wrong = parse(MATRIX.replace("steps: ${{ matrix.steps }}", "stps: 3"), "grid.yaml").data
    assert not jsonschema.Draft202012Validator(schema).is_valid(wrong)
