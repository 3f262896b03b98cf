"""Safetensors files, whose own exception class hides the system's."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write `tensors` into one file, with the metadata by which transformers knows that they are torch's.

    Raises:
        OSError: the system refused (a full disk, say); safetensors alone would tell so only in its message.
    """
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(contiguous, path, metadata={"format": "pt"})
    except SafetensorError as failure:
        number = re.search(r"\(os error (\d+)\)", str(failure))
        if number is None:
            raise
        code = int(number[1])
        raise OSError(code, os.strerror(code), str(path)) from failure
