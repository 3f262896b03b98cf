"""The data step: text in, packed rows out, and an account of what was left out and why.

Everything passes by: records, documents and rows are in memory a window at a time, however large the set is.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from dflash.atomic import write_json
from dflash.errors import DataError, UsageError
from dflash.model.target import load_target
from dflash.progress import Progress
from dflash.training import corpus
from dflash.training.account import Account
from dflash.training.answering import Answering, Asking
from dflash.training.dataconfig import HELDOUT, HELDOUT_ROWS, ROWS, DataConfig
from dflash.training.encoders import keep_by, processes_for
from dflash.training.encoding import CHUNK, Encoded, Encoder, keep
from dflash.training.files import data_files, fingerprint
from dflash.training.packing import pack
from dflash.training.records import Record, Records, opening, record_of, write_records
from dflash.training.responses import cut_prompts, regenerate
from dflash.training.rowcache import RowCache, key_of
from dflash.training.serving import Server
from dflash.training.streaming import windows, writing_rows

TRAIN, REPORT = "train.jsonl", "report.json"


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer beside a model.

    Raises:
        UsageError: there is none; transformers would make up one that turns all text into nothing.
    """
    tokenizer: PreTrainedTokenizerBase
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as failure:
        raise UsageError(f"no tokenizer can be loaded ({failure})", where=str(folder)) from failure
    if not tokenizer("a", add_special_tokens=False)["input_ids"]:
        raise UsageError("there is no tokenizer", where=str(folder), cure="copy tokenizer.json beside the model")
    return tokenizer


def build_dataset(
    config: DataConfig, target: Path, out: Path, progress: Progress, cache: Path | None = None
) -> dict[str, Any]:
    """Write packed rows, the JSONL they come from, held-out prompts, their rows and a report into `out`; the report.

    With `cache`, a folder, rows that were made there of the same text in the same way are not made again.

    Raises:
        DataError: a line can not be read or may not be used, nothing is left to train on (with the count of each
            reason), or the server does not answer.
        StorageError: a file can not be read, or written.
        UsageError: the target has no tokenizer, or the configuration does not fit it.
    """
    tokenizer = read_tokenizer(target)
    encoder = Encoder(tokenizer, max(config.buckets), options=config.template_options, mask=config.mask_token_id)
    if config.file and not config.server:
        return _encode_once(config, encoder, tokenizer, config.file, out, progress, cache)
    encoder.require_marks(str(target))  # before hours of answering
    asked: dict[str, Any] = {}
    if config.server:
        asked, answered = _ask_server(config, encoder, out, progress)
    else:
        answered = _ask_target(config, tokenizer, target, out, progress)
    report = _encode(config, encoder, str(out / TRAIN), 0, out, progress)
    return _write_report(out, report | asked | _pack_heldout(config, encoder, answered, out))


class Withholding:
    """The records of an iterable but for its last `count` conversations, a tenth of them at most.

    Those are `withheld`, once all records have passed, and `prompts` what comes before the assistant's first turn in
    each; a conversation that begins with that has none, and is passed on. Conversations are passed on `count` later
    than they came.
    """

    def __init__(self, records: Iterable[Record], count: int) -> None:
        self.withheld: list[Record] = []
        self._records, self._count = records, count

    def __iter__(self) -> Iterator[Record]:
        waiting: deque[Record] = deque()
        conversations = 0
        for record in self._records:
            if not opening(record):
                yield record
                continue
            conversations += 1
            waiting.append(record)
            if len(waiting) > self._count:
                yield waiting.popleft()
        while len(waiting) > conversations // 10:
            yield waiting.popleft()
        self.withheld = list(waiting)

    @property
    def prompts(self) -> list[dict[str, Any]]:
        return [{"id": record.id, "conversations": opening(record)} for record in self.withheld]


def _corpus_prompts(config: DataConfig, split: str, count: int, seed: int) -> list[tuple[str, str]]:
    documents = corpus.split(corpus.standard_library(config.corpus_bytes), split)
    return cut_prompts(documents, count, (config.prompt_bytes_min, config.prompt_bytes_max), seed)


def _as_conversation(identity: str, prompt: str) -> dict[str, Any]:
    return {"id": identity, "conversations": [{"role": "user", "content": prompt}]}


def _spare(config: DataConfig) -> list[tuple[str, str]]:
    """Prompts to hold out where the data has none of its own to spare."""
    return _corpus_prompts(config, "heldout", config.heldout, config.seed)


def _write_heldout(config: DataConfig, out: Path, prompts: list[dict[str, Any]]) -> None:
    """The prompts to evaluate with; of the corpus, where the data has too few conversations to spare any."""
    write_records(out / HELDOUT, prompts or [_as_conversation(*pair) for pair in _spare(config)])


def _pack_heldout(config: DataConfig, encoder: Encoder, records: Iterable[Record], out: Path) -> dict[str, Any]:
    """Write the rows to measure a training with: all documents of `records` that could be trained on, perhaps none.
    How many rows, by bucket."""
    made = dict.fromkeys(map(str, sorted(config.buckets)), 0)
    documents = (document for _, document, _ in keep(records, encoder, config.block) if document is not None)
    with writing_rows(out / HELDOUT_ROWS) as add:
        for packed in map(partial(pack, buckets=config.buckets), windows(documents)):
            add(packed)
            for bucket, rows in packed.items():
                made[str(bucket)] += len(rows)
    return {"held_out_rows": {bucket: count for bucket, count in made.items() if count}}


def _ask_target(
    config: DataConfig, tokenizer: PreTrainedTokenizerBase, target: Path, out: Path, progress: Progress
) -> list[Record]:
    """Write `train.jsonl`: prompts from text that the target was not trained on, with its own answers. Its answers to
    the prompts that are held out."""
    ask = partial(
        regenerate,
        load_target(target).to(config.device),
        tokenizer,
        progress=progress,
        tokens=config.response_tokens,
        sampled=config.sampled,
        temperature=config.temperature,
        batch=config.batch,
        seed=config.seed,
        options=config.template_options,
    )
    scratch = out / "scratch"
    prompts = _corpus_prompts(config, "prompts", config.prompts, config.seed + 1)
    write_records(out / TRAIN, ask(prompts=prompts, folder=scratch / "responses"))
    _write_heldout(config, out, [])
    return _answered(ask(prompts=_spare(config), folder=scratch / "heldout"))


def _answered(documents: Iterable[dict[str, Any]]) -> list[Record]:
    return [record_of(document, f"{HELDOUT}: {document['id']}") for document in documents]


def _as_records(pairs: Sequence[tuple[str, str]]) -> list[Record]:
    return [Record(name, name, ({"role": "user", "content": prompt},)) for name, prompt in pairs]


def _ask_server(
    config: DataConfig, encoder: Encoder, out: Path, progress: Progress
) -> tuple[dict[str, Any], list[Record]]:
    """Write `train.jsonl`: the prompts of `file`, or of the corpus, with a server's answers. How many are held out, and
    how many have no answer, and why; and its answers to the prompts that are held out."""
    records: Iterable[Record]
    if config.file:
        records = Records(data_files(config.file))
    else:
        records = _as_records(_corpus_prompts(config, "prompts", config.prompts, config.seed + 1))
    total = sum(1 for _ in records)  # and every line is known to be good before hours of answering
    asked = Withholding(records, config.heldout if config.file else 0)
    asking = Asking(config.response_tokens, config.temperature, config.sampled, config.seed, config.template_options)
    server = Server(str(config.server), config.server_model, _key(config), patience_s=config.server_patience)
    answering = Answering(
        server,
        encoder.render,
        asking,
        out / "scratch" / "responses",
        concurrency=config.concurrency,
        batch=config.batch,
    )
    write_records(out / TRAIN, answering.answers(asked, total, progress))
    _write_heldout(config, out, asked.prompts)
    heldout = asked.withheld if config.file else _as_records(_spare(config))
    answered = _answered(answering.answers(heldout, len(heldout), progress))
    unanswered = dict(sorted(answering.unanswered.items()))
    return {"held_out": len(asked.withheld), "unanswered": unanswered}, answered


def _key(config: DataConfig) -> str | None:
    if config.server_key is None:
        return None
    if not os.environ.get(config.server_key):
        raise UsageError(f"the environment has no {config.server_key}", where="data.server_key", cure="set it")
    return os.environ[config.server_key]


def _encode_once(
    config: DataConfig,
    encoder: Encoder,
    tokenizer: PreTrainedTokenizerBase,
    file: str,
    out: Path,
    progress: Progress,
    cache: Path | None,
) -> dict[str, Any]:
    """Encode `file` into `out`, or take what was made of the same; the report."""
    if cache is None or not tokenizer.is_fast:
        return _encode(config, encoder, file, config.heldout, out, progress)
    settings = {name: value for name, value in asdict(config).items() if name in _DECIDES}
    settings["corpus"] = corpus.digest(corpus.standard_library(config.corpus_bytes))
    key, kept = key_of(fingerprint(file), tokenizer, settings), RowCache(cache)
    if kept.restore(key, out):
        progress.note("the same text was encoded in the same way before: its rows are taken")
        report: dict[str, Any] = json.loads((out / REPORT).read_bytes())
        return report
    report = _encode(config, encoder, file, config.heldout, out, progress)
    kept.keep(key, out, (ROWS, REPORT, HELDOUT, HELDOUT_ROWS))
    return report


_DECIDES = (
    *("buckets", "block", "mask_token_id", "template_options"),
    *("heldout", "corpus_bytes", "prompt_bytes_min", "prompt_bytes_max", "seed"),
)
"""The settings that decide rows, or the prompts that are held out."""


def _encode(
    config: DataConfig, encoder: Encoder, source: str, heldout: int, out: Path, progress: Progress
) -> dict[str, Any]:
    records, account = Records(data_files(source)), Account()
    remaining = Withholding(records, heldout)

    def documents() -> Iterator[Encoded]:
        passed = keep_by(processes_for(records.total, config.processes), remaining, encoder, config.block)
        for number, (record, document, reason) in enumerate(passed, start=1):
            account.take(record, document, reason)
            if document is not None:
                yield document
            if number % (16 * CHUNK) == 0:
                progress.update(records.done >> 10, records.total >> 10, {"documents": number})

    with writing_rows(out / ROWS) as add:
        for packed in map(partial(pack, buckets=config.buckets), windows(documents())):
            account.pack(packed)
            add(packed)
            del packed  # before the next window is packed
        if not account.all.documents:
            raise DataError(
                f"no document is left to train on ({', '.join(account.reasons())})",
                where=source,
                cure=f"give documents with at least {config.block} trainable tokens",
            )
    report = account.report(config.buckets) | {"held_out": len(remaining.withheld)}
    if heldout:
        _write_heldout(config, out, remaining.prompts)
        report |= _pack_heldout(config, encoder, remaining.withheld, out)
    for reason in account.reasons():
        progress.note(f"dropped: {reason}")
    if account.all.cut:
        progress.note(f"cut at {max(config.buckets)} tokens: {account.all.cut} documents, of {account.all.lost} tokens")
    return _write_report(out, report)


def _write_report(out: Path, report: dict[str, Any]) -> dict[str, Any]:
    write_json(out / REPORT, report)
    return report
