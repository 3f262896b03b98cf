"""Run by the Python of envs/peer-speculators: vLLM's `speculators` reads what its converter made of an export.

    python -I speculating.py CONVERTED TARGET TENSORS < REQUEST

Prints one document of JSON. `TENSORS` becomes a file with what its training computes for the text of the request: the
anchors, the draft logits (1, anchors * block, V) and the tokens that it takes for right.
"""

import json
import sys
from importlib.metadata import version

import torch
from safetensors.torch import save_file
from speculators import SpeculatorModel, SpeculatorModelConfig
from transformers import AutoModelForCausalLM

converted, target_folder, tensors = sys.argv[1:]
request = json.load(sys.stdin)
dtype = getattr(torch, request["dtype"])
torch.set_num_threads(1)
config = SpeculatorModelConfig.from_pretrained(converted)
config.transformer_layer_config._attn_implementation = "sdpa"  # its training's --draft-attn-impl
draft = SpeculatorModel.from_pretrained(converted, config=config).to(dtype).eval()
target = AutoModelForCausalLM.from_pretrained(target_folder, dtype=dtype, attn_implementation="sdpa").eval()

text = torch.tensor([request["text"]])
last = []
target.model.norm.register_forward_pre_hook(lambda _, words: last.append(words[0]))
with torch.no_grad():
    states = target(text, output_hidden_states=True).hidden_states
    features = torch.cat([states[layer] for layer in draft.target_layer_ids], dim=-1)
    trained = torch.arange(text.shape[1])[None] >= request["first"]
    _, logits, targets, _, indices = draft._backbone_forward(
        hidden_states=features,
        input_ids=text,
        loss_mask=trained.to(dtype),
        verifier_last_hidden_states=last[0],
        document_ids=torch.zeros_like(text),
        max_anchors=int(trained[:, : -draft.block_size].sum()),
    )
save_file({"logits": logits, "right": targets.argmax(-1), "indices": indices}, tensors)
json.dump(
    {
        "versions": {name: version(name) for name in ("speculators", "torch", "transformers")},
        "read": {
            "model": type(draft).__name__,
            "block_size": draft.block_size,
            "mask_token_id": draft.mask_token_id,
            "aux_hidden_state_layer_ids": draft.target_layer_ids,
            "speculative_tokens": config.speculators_config.proposal_methods[0].speculative_tokens,
        },
    },
    sys.stdout,
)
