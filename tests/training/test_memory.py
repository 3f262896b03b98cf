"""The memory of a data step does not grow with its set, and what was made is not made again.

Also a program, so that its peak can be measured: `python -m tests.training.test_memory DATA TOKENIZER OUT CACHE`.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from dflash.model.bytelevel import ASSISTANT, CHAT_TEMPLATE, END, PAD, USER
from dflash.progress import Silent
from dflash.training import corpus
from dflash.training.batches import Batches
from dflash.training.dataconfig import ROWS, DataConfig
from dflash.training.dataset import build_dataset
from dflash.training.packing import load_rows

MB = 10**6


def write_tokenizer(folder: Path) -> None:
    """Byte-level BPE of 4096 tokens, learnt from the standard library: about 3 characters a token."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[USER, ASSISTANT, END, PAD],
        show_progress=False,
    )
    core.train_from_iterator((document.text for document in corpus.standard_library(MB)), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, additional_special_tokens=[USER, ASSISTANT], eos_token=END, pad_token=PAD
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)


def write_conversations(path: Path, size: int) -> None:
    """At least `size` bytes of conversations of 0.5 to 8 KB, cut from the standard library, no two of them alike."""
    text = "".join(document.text for document in corpus.standard_library(8 * MB))
    lengths = cycle(range(500, 8000, 337))
    written = number = start = 0
    with path.open("w") as file:
        while written < size:
            start = (start * 31 + 7919) % (len(text) - 8000)
            said = text[start : start + next(lengths)]
            chat = [
                {"role": "user", "content": f"{number}: {said[:200]}"},
                {"role": "assistant", "content": said[200:]},
            ]
            written += file.write(json.dumps({"id": str(number), "messages": chat}) + "\n")
            number += 1


def status(field: str) -> float:
    """A field of this process's memory in MB, such as RssAnon: what is not a map of a file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024 / MB


def main() -> None:
    data, tokenizer, out, cache = map(Path, sys.argv[1:])
    out.mkdir()
    config = DataConfig(file=str(data), buckets=(1024, 2048, 3072), block=16, corpus_bytes=MB, processes=2)
    begun = time.monotonic()
    report = build_dataset(config, tokenizer, out, Silent(), cache)
    seconds = time.monotonic() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB
    rows, before = load_rows(out / ROWS), status("RssAnon")
    batches = Batches(rows, rows=2, anchors=512, seed=0)
    for index in islice(range(batches.per_epoch), 300):
        batches[index]
    figures = {
        "seconds": seconds,
        "peak": peak,
        "peak_of_a_process": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / MB,
        "reading": status("RssAnon") - before,
        "rows": (out / ROWS).stat().st_size / MB,
        "filled": report["filled"],
        "tokens": report["tokens"],
    }
    print(json.dumps(figures))


def measured(*words: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.training.test_memory", *map(str, words)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.nightly
def test_memory_does_not_grow_with_the_set_and_a_second_build_costs_little_more_than_hashing(tmp_path: Path):
    write_tokenizer(tmp_path / "tokenizer")
    found = {}
    for size in (20, 200):
        data = tmp_path / f"{size}.jsonl"
        write_conversations(data, size * MB)
        places = [data, tmp_path / "tokenizer"]
        found[size] = measured(*places, tmp_path / f"out-{size}", tmp_path / "cache")
        print(f"\n{size} MB of text:", found[size])
    again = measured(*places, tmp_path / "out-again", tmp_path / "cache")
    print("\nagain:", again)
    assert found[200]["rows"] > 8 * found[20]["rows"]
    assert found[200]["peak"] < 1.1 * found[20]["peak"] + 20
    assert found[200]["peak_of_a_process"] < 1.1 * found[20]["peak_of_a_process"] + 20
    assert found[200]["reading"] < found[20]["reading"] + 50
    assert again["tokens"] == found[200]["tokens"]
    assert again["seconds"] < 8


if __name__ == "__main__":
    main()
