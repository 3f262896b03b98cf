"""Records to tokens, with a mask of the tokens that a drafter is trained to predict.

In a conversation those are the assistant's, as the chat template's `{% generation %}` marks say. A `text` that
holds the template's assistant header is read the same way: trainable from the header's end through the mark that
ends the turn, or to the text's end where that is missing. Any other text is trainable throughout.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dflash.errors import DataError
from dflash.training.records import Record

_QUESTION, _ANSWER = "\u2042question\u2042", "\u2042answer\u2042"
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True)
class Encoded:
    """One document: token ids (N,) and which of them are trainable, bool (N,)."""

    tokens: Tensor
    trainable: Tensor


class Encoder:
    """Encodes records with one tokenizer and its chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        """`tokenizer` is a fast one; documents are cut at `max_length` tokens.

        Raises:
            DataError: the chat template can not render the simplest conversation.
        """
        self._tokenizer, self._max_length = tokenizer, max_length
        self._assistant = self._assistant_pattern()

    def __call__(self, record: Record) -> Encoded:
        """Encode; documents longer than `max_length` tokens are cut there.

        Raises:
            DataError: the chat template can not tell the assistant's tokens, or refuses the conversation.
        """
        if record.text is not None:
            return self._text(record.text)
        self.require_marks(record.where)
        try:
            encoding = self._tokenizer.apply_chat_template(
                list(record.conversation), return_dict=True, return_assistant_tokens_mask=True
            )
        except Exception as failure:  # a template is a program of the user's: whatever it raises is about the data
            raise DataError(f"the chat template refused it ({failure})", where=record.where) from failure
        return self._cut(encoding["input_ids"], encoding["assistant_masks"])

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

    def _text(self, text: str) -> Encoded:
        encoding = self._tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
        spans = [match.span(1) for match in self._assistant.finditer(text)] if self._assistant else []
        spans = spans or [(0, len(text))]
        mask = [any(a <= start and end <= b for a, b in spans) for start, end in encoding["offset_mapping"]]
        return self._cut(encoding["input_ids"], mask)

    def _cut(self, tokens: list[int], mask: list[int] | list[bool]) -> Encoded:
        size = self._max_length
        return Encoded(torch.tensor(tokens[:size], dtype=torch.int32), torch.tensor(mask[:size], dtype=torch.bool))

    def _assistant_pattern(self) -> re.Pattern[str] | None:
        """What stands round an assistant's answer, learnt from the template by rendering one conversation.

        The header is what asks for an answer, not what precedes one in a transcript: some templates put an empty
        thought there. White space after the footer is the template's, not the assistant's.
        """
        if not self._tokenizer.chat_template:
            return None
        probe = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}]
        asked, opened, answered = self._render(probe[:1]), self._render(probe[:1], ask=True), self._render(probe)
        header, footer = opened.removeprefix(asked), answered.partition(_ANSWER)[2].rstrip()
        if not header or header == opened or not footer:
            return None
        return re.compile(rf"{re.escape(header)}(.*?(?:{re.escape(footer)}|\Z))", re.DOTALL)

    def _render(self, conversation: list[dict[str, str]], *, ask: bool = False) -> str:
        try:
            return str(self._tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=ask))
        except Exception as failure:  # a template is a program of the user's
            raise DataError(
                f"the chat template can not render a question and its answer ({failure})",
                where=self._tokenizer.name_or_path,
            ) from failure


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
    """Each record with its encoding, or with the reason why it is dropped."""
    for record in records:
        document = encoder(record)
        reason = dropped(document, block)
        yield record, None if reason else document, reason
