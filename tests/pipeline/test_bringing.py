"""A step's spec, told in paths of the host that it runs on."""

from __future__ import annotations

from dflash.pipeline.bringing import spec_there
from tests.pipeline.sample_kinds import KINDS


def test_only_what_names_a_path_is_another_there():
    spec = {"kind": "target", "config": {"text": "target", "corpus": "target"}, "borrowed": None, "out": "/r/out"}
    spec |= {"inputs": {"target": "/r/in"}, "results": {"target": {"word": "target", "file": "/r/in/a"}}}
    pairs = [("/r/out", "/far/out"), ("/r/in", "/far/data/1"), ("target", "/far/data/2/target")]
    there = spec_there(spec, KINDS["target"], pairs)
    assert there["kind"] == there["config"]["text"] == there["results"]["target"]["word"] == "target"
    assert there["config"]["corpus"] == "/far/data/2/target"
    assert (there["out"], there["inputs"]["target"]) == ("/far/out", "/far/data/1")
    assert there["results"]["target"]["file"] == "/far/data/1/a"
