"""What the data step is declared with, and the names of what it leaves. The standard library alone, as in config.py."""

from __future__ import annotations

from dataclasses import dataclass, field

from dflash.training.config import check_device, check_least

ROWS, HELDOUT, HELDOUT_ROWS = "rows.safetensors", "heldout.jsonl", "heldout.safetensors"
"""What the data step leaves for others: packed rows to train on, prompts to evaluate with, and those prompts with their
answers as packed rows to measure a training with."""


@dataclass(frozen=True)
class DataConfig:
    """Where training text comes from and how it is packed.

    Without `file`, `prompts` prompts are cut from text that the target was not trained on and answered by the
    target, the share `sampled` at `temperature`, the rest greedily, with at most `response_tokens` tokens. With `file`
    (one file, a folder, or a pattern: dflash/training/files.py), its text is used as it is, but for its last `heldout`
    conversations, a tenth at most: their prompts are kept for evaluation, and whole they are what a training is
    measured with. Without `file`, `heldout` more prompts are cut from other text for that, and answered too.

    With `server`, the address of an OpenAI-compatible server that runs the target (`http://host:8000/v1`), all prompts
    are answered there, `concurrency` at once, those of `file` too: what its conversations answer is not used. Without
    `server_model`, the first model that it lists is asked; `server_key` names the environment's variable that holds a
    key; a failing request is made again for `server_patience` seconds.

    `template_options` are given to the chat template. `buckets` are row lengths in tokens; documents with fewer than
    `block` trainable tokens are dropped. Text that holds `mask_token_id` is refused by its place. `processes` encode;
    0 is as many as the set is worth, 16 at most.
    """

    file: str | None = None
    server: str | None = None
    server_model: str | None = None
    server_key: str | None = None
    server_patience: float = 300.0
    concurrency: int = 64
    template_options: dict[str, bool | int | float | str] = field(default_factory=dict)
    mask_token_id: int | None = None
    processes: int = 0
    prompts: int = 640
    prompt_bytes_min: int = 24
    prompt_bytes_max: int = 72
    response_tokens: int = 136
    sampled: float = 0.5
    temperature: float = 0.8
    batch: int = 64
    heldout: int = 24
    buckets: tuple[int, ...] = (256,)
    block: int = 8
    corpus_bytes: int = 8_000_000
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_device(self.device)
        if not self.buckets or min(self.buckets) < 2 * self.block:
            raise ValueError(f"buckets must be row lengths of at least two blocks ({2 * self.block} tokens)")
        if not 0 < self.prompt_bytes_min <= self.prompt_bytes_max:
            raise ValueError("prompt_bytes_min must be above 0 and at most prompt_bytes_max")
        if self.temperature < 0:
            raise ValueError(f"temperature is 0 (greedy) or above, not {self.temperature}")
        if not 0 <= self.sampled <= 1:
            raise ValueError(f"sampled is a share in [0, 1], not {self.sampled}")
        check_least(self, 1, "prompts", "response_tokens", "batch", "heldout", "concurrency")
        if self.server is not None and not self.server.startswith(("http://", "https://")):
            raise ValueError(f"server is an address such as http://host:8000/v1, not '{self.server}'")
        if self.server_patience < 0:
            raise ValueError(f"server_patience is a time in seconds, not {self.server_patience}")
        if self.processes < 0:
            raise ValueError(f"processes is a number of processes, not {self.processes}")
        if self.mask_token_id is not None and self.mask_token_id < 0:
            raise ValueError(f"mask_token_id is a row of the vocabulary, not {self.mask_token_id}")
