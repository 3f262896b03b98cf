"""A real HTTP server on loopback that speaks as an OpenAI-compatible one does, and fails as one does when told to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = dict[str, Any]
Fault = Callable[[BaseHTTPRequestHandler], None]


def echo(request: dict[str, Any]) -> Reply:
    """An answer that its question alone decides, and that comes to its end."""
    said = request["messages"][-1]["content"]
    return choice(f"you said {said!r} at {request['temperature']:g}")


def choice(content: str | None, finish: str = "stop", **more: Any) -> Reply:
    return {"choices": [{"finish_reason": finish, "message": {"role": "assistant", "content": content, **more}}]}


def status(code: int, said: str = '{"error": {"message": "no room"}}', **headers: str) -> Fault:
    def fault(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(said))}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(said.encode())

    return fault


def drop(handler: BaseHTTPRequestHandler) -> None:
    """The connection ends without a word."""
    handler.connection.close()


def break_off(handler: BaseHTTPRequestHandler) -> None:
    """The connection ends in the middle of the reply."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')


def sleep(seconds: float) -> Fault:
    def fault(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(seconds)

    return fault


class Speaking:
    """What the server was asked, and what it shall do: `faults` are met by the next requests, one each, instead of
    `answer`."""

    def __init__(self, answer: Callable[[dict[str, Any]], Reply]) -> None:
        self.answer = answer
        self.faults: list[Fault] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        self.url = ""


@contextmanager
def speaking(answer: Callable[[dict[str, Any]], Reply] = echo) -> Iterator[Speaking]:
    """The server runs within the block, at `url`."""
    state = Speaking(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/v1/models"
            status(200, '{"object": "list", "data": [{"id": "tiny"}, {"id": "other"}]}')(self)

        def do_POST(self) -> None:
            assert self.path == "/v1/chat/completions"
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with state.lock:
                state.requests.append(request)
                state.keys.append(self.headers["Authorization"])
                state.at_once += 1
                state.most_at_once = max(state.most_at_once, state.at_once)
                fault = state.faults.pop(0) if state.faults else None
            try:
                if fault:
                    fault(self)
                else:
                    status(200, json.dumps(state.answer(request)))(self)
            finally:
                with state.lock:
                    state.at_once -= 1

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = False
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that went away is no news."""

    server = Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
