"""Records to tokens, with a mask of the tokens that a drafter is trained to predict.

In a conversation those are the assistant's, as the chat template's `{% generation %}` marks say. A `text` that
holds the template's assistant header is read the same way: trainable from the header's end through the mark that
ends the turn, or to the text's end where that is missing. Any other text is trainable throughout.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dflash.errors import DataError, UsageError
from dflash.training.records import Record

_QUESTION, _ANSWER = "\u2042question\u2042", "\u2042answer\u2042"
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_CODE = re.compile(r"\{([{%])(.*?)[%}]\}", re.DOTALL)
_THOUGHT = re.compile(r"\b(reasoning_content|reasoning|thinking)\b")
"""The names under which transformers shows `reasoning_content` to a template."""

CHUNK = 64
"""Records encoded at once: the tokenizer spreads them over the cores by threads of its own (a fork would hang it)."""


@dataclass(frozen=True)
class Encoded:
    """One document: token ids (N,), which of them are trainable, bool (N,), and how many more were cut off."""

    tokens: Tensor
    trainable: Tensor
    lost: int = 0


class Encoder:
    """Encodes records with one tokenizer and its chat template."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        *,
        options: Mapping[str, Any] | None = None,
        mask: int | None = None,
    ) -> None:
        """`tokenizer` is a fast one; documents are cut at `max_length` tokens.

        `options` are given to the chat template. `mask` is a token that no document may hold.

        Raises:
            DataError: the chat template can not render the simplest conversation.
            UsageError: the chat template does not use one of the options.
        """
        self._tokenizer, self._max_length, self._mask = tokenizer, max_length, mask
        self._options = dict(options or {})
        self._code = " ".join(code for _, code in _CODE.findall(tokenizer.chat_template or ""))
        self._require_use_of_options()
        self._assistant = self._assistant_pattern()

    def __call__(self, record: Record) -> Encoded:
        """Encode one record: see `encode`."""
        return self.encode([record])[0]

    def encode(self, records: Sequence[Record]) -> list[Encoded]:
        """Encode; documents longer than `max_length` tokens are cut there.

        Raises:
            DataError: the chat template can not tell the assistant's tokens, or refuses a conversation, or a document
                holds the mask token; the record's place is named.
        """
        chats = iter(self._chats([record for record in records if record.text is None]))
        texts = iter(self._texts([record.text for record in records if record.text is not None]))
        documents = [next(chats if record.text is None else texts) for record in records]
        for record, document in zip(records, documents, strict=True):
            self._refuse_mask(record, document)
        return documents

    def require_marks(self, where: str) -> None:
        """Make sure that the chat template tells the assistant's tokens.

        Raises:
            DataError: it does not; `where` is named.
        """
        if not _GENERATION.search(self._tokenizer.chat_template or ""):
            raise DataError(
                "the target's chat template has no {% generation %} marks, so the assistant's tokens are not known",
                where=where,
                cure="put {% generation %}…{% endgeneration %} round the assistant's content in the template",
            )

    def render(self, conversation: Sequence[Mapping[str, str]], ask: bool = False) -> str:
        """A conversation as the template's text, with what asks for an answer if `ask`.

        Raises:
            DataError: the template refuses it.
        """
        try:
            rendered = self._tokenizer.apply_chat_template(
                list(conversation), tokenize=False, add_generation_prompt=ask, **self._options
            )
        except Exception as failure:  # a template is a program of the user's: whatever it raises is about the data
            raise DataError(f"the chat template refused it ({failure})") from failure
        return str(rendered)

    def _chats(self, records: Sequence[Record]) -> list[Encoded]:
        for record in records:
            self.require_marks(record.where)
            self._require_thoughts(record)
        if not records:
            return []
        try:
            encoding = self._tokenizer.apply_chat_template(
                [list(record.conversation) for record in records],
                return_dict=True,
                return_assistant_tokens_mask=True,
                **self._options,
            )
        except Exception as failure:  # a template is a program of the user's: whatever it raises is about the data
            if len(records) == 1:
                what = f"the chat template refused it ({failure})"
                raise DataError(what, where=records[0].where) from failure
            return [each for record in records for each in self._chats([record])]
        return list(map(self._cut, encoding["input_ids"], encoding["assistant_masks"]))

    def _texts(self, texts: Sequence[str]) -> list[Encoded]:
        if not texts:
            return []
        encoding = self._tokenizer(list(texts), return_offsets_mapping=True, add_special_tokens=False)
        masks = map(self._mask_of_text, texts, encoding["offset_mapping"])
        return list(map(self._cut, encoding["input_ids"], masks))

    def _mask_of_text(self, text: str, offsets: Sequence[tuple[int, int]]) -> list[bool]:
        spans = [match.span(1) for match in self._assistant.finditer(text)] if self._assistant else []
        if not spans:
            return [True] * len(offsets)
        mask, remaining = [], iter(spans)
        first, last = next(remaining)
        for start, end in offsets:
            while start >= last:  # spans and tokens are both in order
                first, last = next(remaining, (len(text) + 1, len(text) + 2))
            mask.append(first <= start and end <= last)
        return mask

    def _cut(self, tokens: list[int], mask: list[int] | list[bool]) -> Encoded:
        size = self._max_length
        kept = torch.tensor(tokens[:size], dtype=torch.int32), torch.tensor(mask[:size], dtype=torch.bool)
        return Encoded(*kept, lost=max(0, len(tokens) - size))

    def _refuse_mask(self, record: Record, document: Encoded) -> None:
        """The drafter could not tell its blanks from words."""
        if self._mask is not None and bool((document.tokens == self._mask).any()):
            token = self._tokenizer.decode([self._mask])
            raise DataError(
                f"the mask token {self._mask} ({token!r}) is in it",
                where=record.where,
                cure="name a vocabulary row that no text uses, or take the record out",
            )

    def _require_thoughts(self, record: Record) -> None:
        if any("reasoning_content" in turn for turn in record.conversation) and not _THOUGHT.search(self._code):
            raise DataError(
                "it has reasoning_content, which the target's chat template leaves out",
                where=record.where,
                cure="take a template that shows it, or remove the field",
            )

    def _require_use_of_options(self) -> None:
        """A template passes over in silence what it does not know: a misspelt option would change nothing."""
        words = set(re.findall(r"[A-Za-z_]\w*", self._code))
        for name in self._options:
            if name not in words:
                near = difflib.get_close_matches(name, words, n=1)
                raise UsageError(
                    f"the target's chat template does not use {name!r}",
                    where="data.template_options",
                    cure=f"did you mean {near[0]!r}?" if near else "remove it",
                )

    def _assistant_pattern(self) -> re.Pattern[str] | None:
        """What stands round an assistant's answer, learnt from the template by rendering one conversation.

        The header is what asks for an answer, not what precedes one in a transcript: some templates put an empty
        thought there. White space after the footer is the template's, not the assistant's.
        """
        if not self._tokenizer.chat_template:
            return None
        probe = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}]
        try:
            asked, opened, answered = self.render(probe[:1]), self.render(probe[:1], ask=True), self.render(probe)
        except DataError as failure:
            what = f"the chat template can not render a question and its answer ({failure.__cause__})"
            raise DataError(what, where=self._tokenizer.name_or_path) from failure
        header, footer = opened.removeprefix(asked), answered.partition(_ANSWER)[2].rstrip()
        if not header or header == opened or not footer:
            return None
        return re.compile(rf"{re.escape(header)}(.*?(?:{re.escape(footer)}|\Z))", re.DOTALL)


def dropped(document: Encoded, block: int) -> str | None:
    """Why a document can not be trained on, or None if it can."""
    if len(document.tokens) < block:
        return "shorter than a block"
    trainable = int(document.trainable.sum())
    if trainable == 0:
        return "no trainable token"
    if trainable < block:
        return "fewer trainable tokens than a block"
    return None


def keep(
    records: Iterable[Record], encoder: Encoder, block: int
) -> Iterator[tuple[Record, Encoded | None, str | None]]:
    """Each record with its encoding, or with the reason why it is dropped. `CHUNK` records are in memory at a time."""
    remaining = iter(records)
    while chunk := list(islice(remaining, CHUNK)):
        for record, document in zip(chunk, encoder.encode(chunk), strict=True):
            reason = dropped(document, block)
            yield record, None if reason else document, reason
