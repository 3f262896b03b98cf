"""Run by the Python of envs/peer-dflash: z-lab's `dflash` reads an export and generates with it.

    python -I zlab.py EXPORT TARGET HIDDEN < REQUEST

Prints one document of JSON. `dflash` is z-lab's here, not this project's. Their loop keeps what each round gained only
together with CUDA's timings, so it is read off the positions that the target is called with. `HIDDEN` becomes a file
with the draft hidden states of one block after the first prompt.
"""

import json
import sys
from importlib.metadata import version

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from dflash.model import DFlashDraftModel, dflash_generate, extract_context_feature

export, target_folder, hidden = sys.argv[1:]
request = json.load(sys.stdin)
dtype = getattr(torch, request["dtype"])
torch.set_num_threads(1)
draft, report = DFlashDraftModel.from_pretrained(export, dtype=dtype, output_loading_info=True)
target = AutoModelForCausalLM.from_pretrained(target_folder, dtype=dtype, attn_implementation="sdpa")
draft, target = draft.eval(), target.eval()
starts = []
target.register_forward_pre_hook(lambda _, __, words: starts.append(int(words["position_ids"][0, 0])), with_kwargs=True)


def generate(prompt, new_tokens):
    """New tokens, and what each round gained. The first call of the target reads the prompt."""
    starts.clear()
    said = dflash_generate(draft, target, torch.tensor([prompt]), new_tokens, stop_token_ids=None)[0].tolist()
    ends = [*starts[2:], len(said) - 1]
    return {"tokens": said[len(prompt) :], "gained": [end - start for start, end in zip(starts[1:], ends, strict=True)]}


@torch.no_grad()
def one_block(prompt):
    """Draft hidden states (1, block, H) after all of `prompt` but its last token, the anchor."""
    tokens = torch.tensor([prompt])
    states = target.model(tokens[:, :-1], position_ids=torch.arange(len(prompt) - 1)[None], output_hidden_states=True)
    features = extract_context_feature(states.hidden_states, draft.target_layer_ids)
    block = torch.full((1, draft.block_size), draft.mask_token_id)
    block[:, 0] = tokens[:, -1]
    positions = torch.arange(len(prompt) - 1 + draft.block_size)[None]
    embedded = target.get_input_embeddings()(block)
    return draft(position_ids=positions, noise_embedding=embedded, target_hidden=features)


def without_cuda():
    """What asking for their own figures says on a machine without CUDA."""
    try:
        dflash_generate(draft, target, torch.tensor([request["prompts"][0]]), 2, None, return_stats=True)
    except Exception as failure:
        return f"{type(failure).__name__}: {failure}"
    return "it works"


save_file({"hidden": one_block(request["prompts"][0])}, hidden)
json.dump(
    {
        "versions": {name: version(name) for name in ("dflash", "torch", "transformers")},
        "loading": {key: sorted(map(str, found)) for key, found in report.items()},
        "read": {
            "block_size": draft.block_size,
            "mask_token_id": draft.mask_token_id,
            "target_layer_ids": draft.target_layer_ids,
        },
        "generated": [generate(prompt, request["new_tokens"]) for prompt in request["prompts"]],
        "whole_blocks": [generate(prompt, request["new_tokens"] + draft.block_size) for prompt in request["prompts"]],
        "without_cuda": without_cuda(),
    },
    sys.stdout,
)
