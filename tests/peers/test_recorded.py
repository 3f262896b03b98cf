"""What peers gave for an export still holds of the export and the decoding of today: see `record.py`."""

from __future__ import annotations

import pytest
import torch

from dflash.model.decoding import generate
from dflash.model.layout import load_draft
from dflash.model.target import load_target
from tests.peers.asking import given, recorded
from tests.peers.learnt import NEW_TOKENS, PROMPTS, Pair, make_pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"))


def test_the_export_has_the_fields_and_tensors_that_the_peers_have_read(pair: Pair):
    assert given(pair.export) == recorded("given")
    read = recorded("dflash")["read"]
    draft = load_draft(pair.export)
    assert read == {name: getattr(draft, name) for name in read}


def test_each_round_gains_what_it_gained_with_zlabs_code(pair: Pair):
    target, draft = load_target(pair.target, torch.float64), load_draft(pair.export).double()
    kept = recorded("dflash")
    for prompt, whole, cut in zip(PROMPTS, kept["whole_blocks"], kept["generated"], strict=True):
        mine = generate(target, draft, prompt, NEW_TOKENS)
        assert mine.tokens == cut["tokens"]
        assert mine.gained == whole["gained"][: len(mine.gained)]
        assert 1.5 < mine.acceptance_length < draft.block_size
