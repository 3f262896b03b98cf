"""A client of OpenAI-compatible servers (`/v1/chat/completions`): one request a connection, with bounded patience.

Standard library alone, since a trainer's environment has no HTTP client, and no proxy is asked: a server of one's own
stands beside the trainer.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from dflash.errors import DataError

_Read = TypeVar("_Read")

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.25, 30.0
_CURE = "see that the server runs, and that data.server is its address with /v1"
_REFUSED = (400, 413, 422)
"""What a server says of one request that it will never take: too long, say. The next may be fine."""


@dataclass(frozen=True)
class Answer:
    """What the model said and thought, and whether it came to its end by itself."""

    content: str
    reasoning: str
    ended: bool


class Unanswered(Exception):
    """The server will not answer this one prompt. `kind` is the same for all such, `str()` is what it said."""

    def __init__(self, kind: str, said: str = "") -> None:
        super().__init__(said or kind)
        self.kind = kind


class Stopped(Exception):
    """The client was closed."""


class Server:
    """One server and one model of it. Threads may share it; `close()` ends their requests at once."""

    def __init__(
        self, url: str, model: str | None = None, key: str | None = None, *, patience_s: float, timeout_s: float = 600.0
    ) -> None:
        """`url` ends where `/chat/completions` begins; without `model`, the first one that the server lists is taken.

        A request that fails is made again until `patience_s` seconds after its first failure. `timeout_s` is how long
        a server may be silent. The server is asked for its models at once, and is not waited for.

        Raises:
            DataError: there is no such server, or it has no such model.
        """
        parts = urlsplit(url)
        self.url, self._patience_s, self._timeout_s = url.rstrip("/"), patience_s, timeout_s
        self._secure, self._place, self._path = parts.scheme == "https", parts.netloc, parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._closed, self._lock = threading.Event(), threading.Lock()
        self._live: set[http.client.HTTPConnection] = set()
        self.model = model or self._first_model()

    def chat(
        self, messages: Sequence[Mapping[str, str]], *, tokens: int, temperature: float, seed: int, **more: Any
    ) -> Answer:
        """The model's answer of at most `tokens` tokens; `more` goes into the request as it is.

        Raises:
            Unanswered: the server refuses this prompt, or broke the answer off for a reason of its own.
            DataError: the server does not answer, or refuses all requests.
            Stopped: `close()` was called.
        """
        request = {"model": self.model, "messages": list(messages), "max_tokens": tokens, "temperature": temperature}
        finish, message = self._ask("POST", "/chat/completions", {**request, "seed": seed, **more}, _choice)
        if finish not in ("stop", "length"):
            raise Unanswered(f"ended by {finish!r}")
        thought = message.get("reasoning_content") or message.get("reasoning") or ""
        return Answer(message.get("content") or "", thought, finish == "stop")

    def close(self) -> None:
        """End all requests: those who wait for one get `Stopped`."""
        self._closed.set()
        with self._lock:
            for connection in self._live:
                with contextlib.suppress(OSError):  # it may have ended by itself
                    if connection.sock is not None:
                        connection.sock.shutdown(socket.SHUT_RDWR)

    def _first_model(self) -> str:
        try:
            return self._exchange("GET", "/models", None, lambda document: str(document["data"][0]["id"]))
        except (_Passing, Unanswered) as failure:
            raise DataError(f"its models can not be listed ({failure})", where=self.url, cure=_CURE) from failure

    def _ask(self, method: str, path: str, body: Any, read: Callable[[Any], _Read]) -> _Read:
        """`_exchange`, again and again while the failure may pass."""
        given_up, attempt = float("inf"), 0
        while True:
            try:
                return self._exchange(method, path, body, read)
            except _Passing as failure:
                attempt += 1
                now = time.monotonic()
                given_up = min(given_up, now + self._patience_s)
                backoff = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(attempt, 10)) * random.uniform(0.5, 1.0)
                wait = max(failure.wait_s, backoff)
                if now + wait > given_up:
                    what = f"no answer in {attempt} attempts ({failure})"
                    raise DataError(what, where=self.url, cure=_CURE) from failure
            if self._closed.wait(wait):
                raise Stopped

    def _exchange(self, method: str, path: str, body: Any, read: Callable[[Any], _Read]) -> _Read:
        """One request; `read` makes of the reply's JSON what is wanted.

        Raises:
            _Passing: it may go better another time.
            Unanswered, DataError, Stopped: see `chat`.
        """
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._place, timeout=self._timeout_s)
        with self._lock:
            self._live.add(connection)
        try:
            if self._closed.is_set():
                raise Stopped
            content = None if body is None else json.dumps(body).encode()
            connection.request(method, self._path + path, content, self._headers)
            reply = connection.getresponse()
            said, pause = reply.read(), reply.headers.get("Retry-After", "")
        except (OSError, http.client.HTTPException) as failure:
            if self._closed.is_set():
                raise Stopped from failure
            raise _Passing(str(failure) or type(failure).__name__) from failure
        finally:
            with self._lock:
                self._live.discard(connection)
            connection.close()
        if reply.status == 200:
            try:
                return read(json.loads(said))
            except (ValueError, LookupError, TypeError, AttributeError) as failure:
                raise _Passing(f"a reply that is none: {said[:80]!r}") from failure
        what = f"HTTP {reply.status}: {_reason(said) or reply.reason}"
        if reply.status in _REFUSED:
            raise Unanswered(f"refused by the server with HTTP {reply.status}", what)
        if reply.status == 429 or reply.status >= 500:
            raise _Passing(what, min(float(pause), _LONGEST_WAIT_S) if pause.isdecimal() else 0.0)
        raise DataError(f"the server refuses ({what})", where=self.url, cure=_CURE)


class _Passing(Exception):
    """A failure that may pass; `wait_s` is how long the server asks to be left alone."""

    def __init__(self, problem: str, wait_s: float = 0.0) -> None:
        super().__init__(problem)
        self.wait_s = wait_s


def _choice(document: Any) -> tuple[str, dict[str, Any]]:
    choice = document["choices"][0]
    message = choice["message"]
    if not isinstance(message.get("content"), str | None):
        raise TypeError("an answer is a text")
    return str(choice["finish_reason"]), message


def _reason(said: bytes) -> str:
    """What an error's reply says in words, in the two shapes that servers give it."""
    try:
        document = json.loads(said)
        error = document.get("error", document)
        return str(error["message"] if isinstance(error, dict) else error)[:200]
    except (ValueError, LookupError, TypeError, AttributeError):
        return said[:80].decode("utf-8", "replace")
