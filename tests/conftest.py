"""What several rooms' tests share: one tiny target, as a model and as a folder. Tests only read it.

Imports are inside, so that tests of rooms without torch do not wait for it.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM

MARK = "DFLASH_TESTS"
"""The variable by which a process that another run of tests has started on this machine is told from ours."""

# How long one example takes says more about what else the machine does.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

# A shell has what it starts in the background ignore Ctrl-C, and all that this starts would, too.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.sharing import Sharing

    return Sharing(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """What the tests start says whose it is; and of several processes each takes its part of the processors."""
    os.environ[MARK] = str(os.getpid())
    if hasattr(config, "workerinput"):
        os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // config.workerinput["workercount"]))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        from tests.sharing import turn_of

        items.sort(key=lambda item: turn_of(item.location[0]))


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
