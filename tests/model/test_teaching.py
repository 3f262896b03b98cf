"""The divergence from the target in training, against the target's own logits and a slow drafter's."""

from __future__ import annotations

import torch
from torch.nn.functional import kl_div
from transformers import Qwen3ForCausalLM

from dflash.model.target import Capture
from dflash.training.regions import labels
from tests.model.reference import SlowDraft
from tests.tiny import BLOCK, draft_eagerly, micro_batch, new_draft

ANCHORS = [[2, 6, 12], [3, 10, -1]]
LENGTHS = [[8, 7], [16]]


@torch.no_grad()
def test_slot_k_is_taught_what_the_target_says_after_the_token_before_it(target: Qwen3ForCausalLM):
    draft = new_draft(layers=1, features=2)
    tokens = torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(4))
    batch = micro_batch(tokens, LENGTHS, ANCHORS)
    capture = Capture(target, draft.target_layer_ids, last=True)
    features = capture.features(batch.tokens, batch.positions, batch.documents)
    wanted = labels(batch, None, BLOCK)
    slow = SlowDraft(draft.state_dict(), draft.config)
    embedding, head = target.model.embed_tokens.weight, target.lm_head.weight
    expected = 0.0
    for row, start, length, anchor in ((0, 0, 8, 2), (0, 0, 8, 6), (0, 8, 7, 4), (1, 0, 16, 3), (1, 0, 16, 10)):
        document = tokens[row, start : start + length]
        said = target(document[None], output_hidden_states=True)
        picked = torch.cat([said.hidden_states[layer + 1][0] for layer in draft.target_layer_ids], dim=-1)
        drafted = (slow(document, picked, anchor, embedding) @ head.T).log_softmax(-1)
        for slot in range(1, min(BLOCK, length - anchor)):
            theirs = said.logits[0, anchor + slot - 1].log_softmax(-1)
            expected += float(kl_div(drafted[slot], theirs, log_target=True, reduction="sum"))
    with torch.enable_grad():
        loss = draft_eagerly(draft, target, batch, features, wanted, kl=1.0).loss
    assert abs(loss.item() / expected - 1) < 1e-5
