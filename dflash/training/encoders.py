"""Encoding by several processes: what Python does for each token is most of the work, and its threads share one core.

They are spawned. A forked one would hang where the tokenizer's threads held a lock.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

import numpy as np
import torch

from dflash.errors import DataError
from dflash.training.encoding import CHUNK, Encoded, Encoder, dropped, keep
from dflash.training.records import Record

WORTH = 64 * 2**20
"""Bytes of text from which on processes are worth their start, which takes seconds."""

MOST = 16
"""Processes that are started unasked: each takes some 400 MB."""

_Part = tuple[np.ndarray, np.ndarray, int] | str
"""What a process sends of a document, or why there is none. As arrays: a tensor would take a file descriptor each."""


def processes_for(size: int, wanted: int) -> int:
    """How many processes encode `size` bytes: `wanted`, or for 0 what is worth it on this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return wanted or (min(MOST, cores) if size >= WORTH else 1)


def keep_by(
    processes: int, records: Iterable[Record], encoder: Encoder, block: int
) -> Iterator[tuple[Record, Encoded | None, str | None]]:
    """As `keep`, in the same order, by `processes` processes (1: by this one). `CHUNK` records at a time and two chunks
    a process are in memory.

    Raises:
        DataError: see `Encoder.encode`; or a process was killed.
    """
    if processes == 1:
        yield from keep(records, encoder, block)
        return
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin, (encoder, block))
    remaining = iter(records)
    pending: deque[tuple[list[Record], Future[list[_Part]]]] = deque()
    try:
        while True:
            while len(pending) < 2 * processes and (chunk := list(islice(remaining, CHUNK))):
                pending.append((chunk, pool.submit(_encode, chunk)))
            if not pending:
                return
            chunk, future = pending.popleft()
            for record, part in zip(chunk, future.result(), strict=True):
                if isinstance(part, str):
                    yield record, None, part
                else:
                    yield record, Encoded(torch.from_numpy(part[0]), torch.from_numpy(part[1]), part[2]), None
    except BrokenProcessPool as failure:
        raise DataError(
            "a process that encodes was killed (was memory short?)", cure="encode with fewer: data.processes"
        ) from failure
    finally:
        pool.shutdown(cancel_futures=True)


_own: tuple[Encoder, int] | None = None
"""The encoder of this process, and the block's length: sent once, not with each chunk."""


def _begin(encoder: Encoder, block: int) -> None:
    global _own
    _own = encoder, block
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes share the cores already
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who is interrupted shuts the pool down
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _encode(records: list[Record]) -> list[_Part]:
    assert _own is not None
    encoder, block = _own
    parts: list[_Part] = []
    for document in encoder.encode(records):
        reason = dropped(document, block)
        parts.append(reason or (document.tokens.numpy(), document.trainable.numpy(), document.lost))
    return parts
