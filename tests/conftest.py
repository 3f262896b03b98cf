"""What several rooms' tests share: one tiny target, as a model and as a folder. Tests only read it.

Imports are inside, so that tests of rooms without torch do not wait for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM

# How long one example takes says more about what else the machine does.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def target() -> Qwen3ForCausalLM:
    """Six layers, float64, random weights."""
    from tests.tiny import new_target

    return new_target()


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same target in float32 with the byte tokenizer, as the pipeline's target step leaves it."""
    import torch

    from dflash.model.bytelevel import byte_tokenizer
    from tests.tiny import new_target

    folder = tmp_path_factory.mktemp("target")
    new_target().to(torch.float32).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
