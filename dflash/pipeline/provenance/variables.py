"""The environment variables that a record keeps: those that change what is computed or how, and no others."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

_KEPT = re.compile(
    r"(?:CUDA|CUBLAS|CUDNN|NVIDIA|NCCL|GLOO|TORCH|TORCHINDUCTOR|TORCHDYNAMO|TORCHELASTIC|PYTORCH|TRITON|OMP|GOMP|KMP|MKL"
    r"|OPENBLAS|BLIS|ATEN|DNNL|ONEDNN|MALLOC|HF|TRANSFORMERS|TOKENIZERS|DFLASH)_\w+"
    r"|RANK|LOCAL_RANK|GROUP_RANK|ROLE_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT"
    r"|SLURM_(?:JOB_ID|PROCID|NTASKS|NNODES|NODEID|CPUS_PER_TASK)"
    r"|PYTHONHASHSEED|PYTHONPATH|PYTHONOPTIMIZE|LD_LIBRARY_PATH|LD_PRELOAD|CXX|CC|CXXFLAGS|CFLAGS|VIRTUAL_ENV"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH(?!OR)|COOKIE", re.IGNORECASE)
HIDDEN = "(not kept)"


def kept(environ: Mapping[str, str], secrets: Collection[str] = ()) -> dict[str, str]:
    """Of variables those that a record keeps, by name. Of one whose name sounds like a secret's, or is among `secrets`,
    only that it was set."""
    return {
        name: HIDDEN if _SECRET.search(name) or name in secrets else without_credentials(value)
        for name, value in sorted(environ.items())
        if _KEPT.fullmatch(name)
    }


def without_credentials(text: str) -> str:
    """A text in which no address names a user or a password, or has a query, where a token may be."""
    return re.sub(r"([a-zA-Z][\w+.-]*://)(?:[^/@\s]*@)?([^\s?]*)(?:\?\S*)?", r"\1\2", text)


def of_workers(environs: Collection[Mapping[str, str]]) -> dict[str, str]:
    """The variables of several processes as one map: of what they do not share, every value, in order."""
    names = sorted({name for environ in environs for name in environ})
    values = {name: sorted({environ[name] for environ in environs if name in environ}) for name in names}
    return {name: ", ".join(found) for name, found in values.items()}
