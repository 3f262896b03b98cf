"""The account of a data step: nothing uncounted, file by file."""

from __future__ import annotations

import torch

from dflash.training.account import Account
from dflash.training.batches import anchor_candidates
from dflash.training.encoding import Encoded
from dflash.training.packing import pack
from dflash.training.records import Record


def document(mask: str, lost: int = 0) -> Encoded:
    trainable = torch.tensor([each == "x" for each in mask])
    return Encoded(torch.arange(len(mask), dtype=torch.int32), trainable, lost)


TAKEN = [
    ("a.jsonl:1", document("..xxxx"), None),
    ("a.jsonl:2", None, "shorter than a block"),
    ("b.parquet: row 1", document("x.xx.xxx", lost=5), None),
    ("b.parquet: row 2", None, "no trainable token"),
    ("b.parquet: row 3", None, "no trainable token"),
]


def account() -> Account:
    account = Account()
    for where, found, reason in TAKEN:
        account.take(Record("r", where, text=""), found, reason)
    account.pack(pack([found for _, found, _ in TAKEN if found], [8, 16]))
    return account


def test_every_file_has_its_figures_and_they_add_up():
    report = account().report([8, 16])
    assert report["sources"] == {
        "a.jsonl": {
            "documents": 1,
            "tokens": 6,
            "trainable_tokens": 4,
            "cut": {"documents": 0, "tokens": 0},
            "dropped": {"shorter than a block": 1},
        },
        "b.parquet": {
            "documents": 1,
            "tokens": 8,
            "trainable_tokens": 6,
            "cut": {"documents": 1, "tokens": 5},
            "dropped": {"no trainable token": 2},
        },
    }
    assert (report["documents"], report["tokens"], report["trainable_tokens"]) == (2, 14, 10)
    assert report["cut"] == {"documents": 1, "tokens": 5}
    assert report["dropped"] == {"no trainable token": 2, "shorter than a block": 1}
    assert report["trainable_share"] == round(10 / 14, 4)


def test_the_rows_and_how_full_they_are_are_told():
    report = account().report([8, 16])
    assert report["rows"] == {"8": 2}
    assert report["filled"] == 14 / 16


def test_possible_anchors_are_those_that_batches_draw_from():
    found = [document for _, document, _ in TAKEN if document]
    counts = [
        int(anchor_candidates(each.trainable[None], torch.zeros(1, len(each.tokens), dtype=torch.int32)).sum())
        for each in found
    ]
    assert counts == [3, 3]
    more = account()
    more.take(Record("r", "c:1", text=""), document("xx"), None)
    assert more.report([8])["anchors"] == {"possible": 7, "per_document": {"fewest": 1, "mean": 2.3, "most": 3}}


def test_an_account_of_nothing_is_all_noughts():
    report = Account().report([8])
    assert (report["documents"], report["filled"], report["anchors"]["possible"]) == (0, 0.0, 0)
