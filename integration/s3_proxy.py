"""An HTTP proxy ahead of an S3 server that answers chosen requests as an overloaded store does, or not at all.

It runs in a process of its own (`python s3_proxy.py PORT UPSTREAM`): PyArrow finishes uploads while it holds Python's
lock, and would wait for a server in the same process for ever. `ObjectStoreProxy` in `object_store.py` is told what to
do by it; here that arrives as requests below `/-/`, which no bucket can be called.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import sys
import threading
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

CONTROL = "/-/"
_OF_ONE_CONNECTION = ("connection", "expect", "keep-alive", "transfer-encoding")
_ERROR = '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{}</Code><Message>{}</Message></Error>'

Answer = tuple[int, list[tuple[str, str]], bytes]


@dataclass(frozen=True)
class Trouble:
    """What happens to the next `times` requests of a method whose path and query a regular expression is found in.

    `slow-down` is an answer 503 SlowDown, or another `status` and `code`; `drop` a TCP reset in the place of an answer,
    `cut` one in the middle of its body. `before`: the store never sees the request; `after`: it has done what it was
    asked for.
    """

    kind: Literal["slow-down", "drop", "cut"]
    method: str
    times: int
    when: Literal["before", "after"] = "before"
    path: str = ""
    status: int = 503
    code: str = "SlowDown"
    message: str = "Please reduce your request rate."

    def answer(self) -> Answer:
        """What the client gets instead of the store's answer."""
        headers = [("Content-Type", "application/xml"), *([("Retry-After", "1")] if self.status == 503 else [])]
        return self.status, headers, _ERROR.format(self.code, self.message).encode()

    def meets(self, method: str, path: str) -> bool:
        """Whether this request is one of them."""
        return self.times > 0 and self.method == method and re.search(self.path, path) is not None


class Proxy(ThreadingHTTPServer):
    """Forwards to `upstream` (`host:port`); one thread per connection."""

    daemon_threads = True

    def __init__(self, port: int, upstream: str) -> None:
        self.upstream = upstream
        self.seen: list[tuple[str, str, str]] = []
        self._troubles: list[Trouble] = []
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", port), _Handler)

    def told(self, troubles: list[Trouble]) -> None:
        """These are the troubles from now on; what was seen before is forgotten."""
        with self._lock:
            self._troubles, self.seen = troubles, []

    def next(self, method: str, path: str) -> Trouble | None:
        """Take note of a request, and spend a trouble on it if it meets one."""
        with self._lock:
            for i, trouble in enumerate(self._troubles):
                if trouble.meets(method, path):
                    self._troubles[i] = replace(trouble, times=trouble.times - 1)
                    self.seen.append((method, path, f"{trouble.kind} {trouble.when}"))
                    return trouble
            self.seen.append((method, path, ""))
            return None


class _Handler(BaseHTTPRequestHandler):
    server: Proxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """What was seen is asked for by the test; the log is left to errors."""

    def answer(self) -> None:
        """One request of any method; a client that has gone in the meantime gets nothing."""
        try:
            body = self._body()
            if self.path.startswith(CONTROL):
                return self._control(body)
            trouble = self.server.next(self.command, self.path)
            answer = self._forward(body) if trouble is None or trouble.when == "after" else None
            if trouble is not None and trouble.kind == "cut":
                return self._send(*self._forward(body), cut=True)
            if trouble is not None:
                answer = trouble.answer() if trouble.kind == "slow-down" else None
            return self._reset() if answer is None else self._send(*answer)
        except ConnectionError:
            self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 (names that http.server looks for)

    def _control(self, body: bytes) -> None:
        if self.command == "PUT":
            self.server.told([Trouble(**each) for each in json.loads(body)])
        self._send(200, [("Content-Type", "application/json")], json.dumps(self.server.seen).encode())

    def _body(self) -> bytes:
        """The body; one that was sent in chunks keeps their framing, so that the store is sent the same bytes."""
        if not self._is_chunked:
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        lines: list[bytes] = []
        while size := self.rfile.readline():
            length = int(size.split(b";")[0], 16)
            lines += [size, self.rfile.read(length + 2)]
            if length == 0:
                break
        return b"".join(lines)

    @property
    def _is_chunked(self) -> bool:
        return "chunked" in self.headers.get("Transfer-Encoding", "")

    def _forward(self, body: bytes) -> Answer:
        """What the store answers. Of a body that was cut it is sent the part that arrived, and then nothing more."""
        store = HTTPConnection(self.server.upstream, timeout=60)
        try:
            store.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _OF_ONE_CONNECTION or name.lower() == "transfer-encoding":
                    # Google's XML API is that of S3 but for the names of headers
                    store.putheader(name.lower().replace("x-goog-", "x-amz-"), value)
            store.endheaders(body)
            if not self._is_whole(body):
                raise ConnectionAbortedError
            answer = store.getresponse()
            headers = [(n, v) for n, v in answer.getheaders() if n.lower() not in _OF_ONE_CONNECTION]
            return answer.status, headers, answer.read()
        finally:
            store.close()

    def _is_whole(self, body: bytes) -> bool:
        if self._is_chunked:
            return body.endswith(b"0\r\n\r\n")
        return len(body) == int(self.headers.get("Content-Length") or 0)

    def _send(self, status: int, headers: list[tuple[str, str]], body: bytes, cut: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if self.command == "HEAD" or name.lower() != "content-length":
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self._reset()

    def _reset(self) -> None:
        self.close_connection = True
        # lingering for no time makes the system send a reset where it would end the connection in good order
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


if __name__ == "__main__":
    Proxy(int(sys.argv[1]), sys.argv[2]).serve_forever()
