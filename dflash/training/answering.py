"""Conversations answered anew by a server of the target: the questions stay, the answers are the target's own."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dflash.errors import DataError
from dflash.progress import Progress
from dflash.training.records import Message, Record, write_records
from dflash.training.serving import Answer, Server, Unanswered

Render = Callable[[Sequence[Mapping[str, str]], bool], str]
"""A conversation as the chat template's text; True adds what asks for an answer."""

_MARK = "\u2042said\u2042"
_NO_PROMPT = "no prompt"


@dataclass(frozen=True)
class Asking:
    """How the target is asked: at most `tokens` tokens an answer, the share `sampled` of the records at `temperature`,
    the others greedily; `options` of the chat template; seeds from `seed` on."""

    tokens: int
    temperature: float
    sampled: float
    seed: int
    options: Mapping[str, Any]

    def heat(self, number: int) -> float:
        """The temperature of record `number`: sampled where the running share steps over an integer."""
        return self.temperature if int((number + 1) * self.sampled) > int(number * self.sampled) else 0.0


class Answering:
    """Asks for all answers of records, `concurrency` at once; iterate for the answered records, in order.

    An answer that came to its end is part of its conversation. One that was cut off ends it, and the record is a text:
    the chat template would close it with an end that the target never said. A later question is asked with the answers
    that the target gave before. A prompt that the server refuses is left out, and counted in `unanswered`.

    Answers are kept in `folder`, one file for `batch` records, written whole, under a name made of what was asked and
    how: an interrupted run goes on from there, and one that asks for something else does not take them.
    """

    def __init__(
        self, server: Server, render: Render, asking: Asking, folder: Path, *, concurrency: int, batch: int
    ) -> None:
        self.unanswered: Counter[str] = Counter()
        self._server, self._render, self._asking, self._folder = server, render, asking, folder
        self._concurrency, self._batch = concurrency, batch
        self._answered = 0

    def answers(self, records: Iterable[Record], total: int, progress: Progress) -> Iterator[dict[str, Any]]:
        """The answered records, of `total` that are asked.

        Raises:
            DataError: the server does not answer, or refuses the whole first batch.
        """
        pending: deque[tuple[Path, list[Future[dict[str, Any]]]]] = deque()
        pool = ThreadPoolExecutor(self._concurrency)
        remaining, number, done = iter(records), 0, 0
        try:
            while True:
                while sum(len(futures) for _, futures in pending) < self._batch + 2 * self._concurrency:
                    part = list(islice(remaining, self._batch))
                    if not part:
                        break
                    pending.append((path := self._path(part, number), []))
                    if not path.exists():
                        numbered = enumerate(part, start=number)
                        pending[-1][1].extend(pool.submit(self._answer, record, place) for place, record in numbered)
                    number += len(part)
                    if len(pending) > self._concurrency:
                        break
                if not pending:
                    return
                for document in self._finish(*pending.popleft()):
                    done += 1
                    if "unanswered" in document:
                        self.unanswered[document["unanswered"]] += 1
                    else:
                        self._answered += 1
                        yield document
                progress.update(done, total)
        except BaseException:
            self._server.close()  # whoever waits for an answer is released
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _path(self, part: Sequence[Record], number: int) -> Path:
        asked = [[record.id, record.text, record.conversation] for record in part]
        fields = {"asked": asked, "how": asdict(self._asking), "model": self._server.model, "first": number}
        digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
        return self._folder / f"batch-{number // self._batch:05d}-{digest[:16]}.jsonl"

    def _finish(self, path: Path, futures: list[Future[dict[str, Any]]]) -> list[dict[str, Any]]:
        if futures:
            made = [future.result() for future in futures]
            refused = [each["said"] for each in made if "said" in each]
            if len(refused) == len(made) and not self._answered:
                what = f"the server refused the first {len(made)} prompts ({refused[0]})"
                raise DataError(what, where=self._server.url, cure="see what it says, or give other prompts")
            write_records(path, made)
        return [json.loads(line) for line in path.read_bytes().splitlines()]

    def _answer(self, record: Record, number: int) -> dict[str, Any]:
        """The record with its answers, or why it has none. Runs in a thread."""
        heat = self._asking.heat(number)
        identity = f"{record.id}:{f't{heat:g}' if heat else 'greedy'}"
        said: list[Message] = []
        try:
            for turn in _asked(record):
                if turn["role"] != "assistant":
                    said.append(turn)
                    continue
                answer = self._ask(said, heat, number)
                if not answer.ended:
                    return {"id": identity, "text": self._broken_off(said, answer)}
                said.append(_message(answer))
        except Unanswered as failure:
            return {"id": identity, "unanswered": failure.kind, "said": str(failure)}
        if not said:
            return {"id": identity, "unanswered": _NO_PROMPT}
        return {"id": identity, "conversations": said}

    def _ask(self, said: Sequence[Message], heat: float, number: int) -> Answer:
        asking = self._asking
        more = {"chat_template_kwargs": dict(asking.options)} if asking.options else {}
        history = [{"role": turn["role"], "content": turn["content"]} for turn in said]
        return self._server.chat(history, tokens=asking.tokens, temperature=heat, seed=asking.seed + number, **more)

    def _broken_off(self, said: Sequence[Message], answer: Answer) -> str:
        """The conversation as a text that ends where the answer does.

        Raises:
            DataError: the template does not show where a thought goes.
        """
        if not answer.reasoning:
            return self._render(said, True) + answer.content
        begun, end = (
            ({"content": _MARK, "reasoning_content": answer.reasoning}, answer.content)
            if answer.content
            else ({"content": "", "reasoning_content": _MARK}, answer.reasoning)
        )
        before, mark, _ = self._render([*said, {"role": "assistant", **begun}], False).partition(_MARK)
        if not mark or (answer.content and answer.reasoning.strip() not in before):
            raise DataError(
                "the server tells thoughts from answers, but the target's chat template leaves reasoning_content out",
                where=self._server.url,
                cure="serve the model without a reasoning parser",
            )
        return before + end


def _message(answer: Answer) -> Message:
    thought = {"reasoning_content": answer.reasoning} if answer.reasoning else {}
    return {"role": "assistant", "content": answer.content, **thought}


def _asked(record: Record) -> Iterator[Message]:
    """The turns of a conversation from what was first asked on, with one place for an answer after each question."""
    asked = False
    for turn in record.conversation:
        if turn["role"] == "assistant":
            if asked:
                yield turn
            asked = False
        else:
            yield turn
            asked = asked or turn["role"] == "user"
    if asked:
        yield {"role": "assistant", "content": ""}
