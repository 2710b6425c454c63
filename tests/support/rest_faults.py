"""The HTTP side of the mini REST catalog: requests become calls, and the answers to commits may be spoiled."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import ValidationError
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    UnauthorizedError,
)

if TYPE_CHECKING:
    from tests.support.rest_server import MiniRest

_NAMESPACES, _NAMESPACE = "/v1/{prefix}/namespaces", "/v1/{prefix}/namespaces/{namespace}"
_TABLES, _TABLE = _NAMESPACE + "/tables", _NAMESPACE + "/tables/{table}"
_ENDPOINTS = [f"{verb} {_NAMESPACES}" for verb in ("GET", "POST")]
_ENDPOINTS += [f"{verb} {_NAMESPACE}" for verb in ("GET", "HEAD", "DELETE")]
_ENDPOINTS += [f"{verb} {_TABLES}" for verb in ("GET", "POST")]
_ENDPOINTS += [f"{verb} {_TABLE}" for verb in ("GET", "HEAD", "POST", "DELETE")]
_ENDPOINTS += [f"HEAD {_NAMESPACE}/views/{{view}}"]
_NAMESPACE_SEPARATOR = "\x1f"
_NOT_LANDED = b'{"metadata-location": "the answer of a commit that did not land"}'

# First match wins, so subclasses come before their bases.
_STATUS_OF: list[tuple[type[Exception], int, str]] = [
    (NoSuchTableError, 404, "NoSuchTableException"),
    (NoSuchNamespaceError, 404, "NoSuchNamespaceException"),
    (TableAlreadyExistsError, 409, "AlreadyExistsException"),
    (NamespaceAlreadyExistsError, 409, "AlreadyExistsException"),
    (NamespaceNotEmptyError, 409, "NamespaceNotEmptyException"),
    (CommitFailedException, 409, "CommitFailedException"),
    (UnauthorizedError, 401, "NotAuthorizedException"),
    (ForbiddenError, 403, "ForbiddenException"),
    (NotImplementedError, 501, "UnsupportedOperationException"),
    (ValidationError, 400, "BadRequestException"),
    (BadRequestError, 400, "IllegalArgumentException"),
]
STATUS_KINDS = (400, 401, 403, 404, 409, 419, 429, 500, 502, 503, 504)
Moment = Literal["before", "after"]
WIRE_KINDS = ("reset", "truncated", "html", "hang")


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong with one commit request.

    `kind` is an HTTP status, or `reset` (TCP reset instead of an answer), `truncated` (200 with half of its body),
    `html` (200 with a proxy's page) or `hang` (no answer until the test calls `MiniRest.release`).

    `when` is `before` (nothing is committed) or `after` (the commit has landed, only its answer is spoiled). A `hang`
    before is a late landing: the commit is tried when the test releases it, and answered as it then ends. A status has
    the header `Retry-After` if it is given.
    """

    kind: int | str
    when: Moment = "before"
    retry_after: str = ""

    def __post_init__(self) -> None:
        if self.kind not in STATUS_KINDS + WIRE_KINDS:
            raise ValueError(f"Cannot inject {self.kind!r}: known are {STATUS_KINDS + WIRE_KINDS}")
        if self.when not in ("before", "after"):
            raise ValueError(f"Cannot inject a fault {self.when!r}: it comes 'before' or 'after' the commit")


class Server(ThreadingHTTPServer):
    """Listens on a free loopback port; one thread per connection, ended with the process at the latest."""

    daemon_threads = True

    def __init__(self, mini: MiniRest) -> None:
        self.mini = mini
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        self.server.mini.requests.append(f"{self.command} {self.path} {int(code)}")

    def answer(self) -> None:
        """Answer one request of any verb; a client that has gone in the meantime gets nothing.

        Tokens are granted to anybody who asks: what is tested is that a client asks again.
        """
        try:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path == "/v1/oauth/tokens":
                return self._json({"access_token": self.server.mini.token, "token_type": "bearer"})
            self._require_token()
            self._route(json.loads(text or b"{}"))()
        except ConnectionError:
            self.close_connection = True
        except Exception as error:
            self._answer_error(error)

    do_GET = do_HEAD = do_POST = do_DELETE = answer  # noqa: N815 (names that http.server looks for)

    def _require_token(self) -> None:
        token = self.server.mini.token
        if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
            raise UnauthorizedError("The access token has expired")

    def _answer_error(self, error: Exception) -> None:
        for kind, status, name in _STATUS_OF:
            if isinstance(error, kind):
                return _send(self, status, _error_body(status, name, str(error)))
        self.server.mini.errors.append(error)
        return _send(self, 500, _error_body(500, type(error).__name__, str(error)))

    def _route(self, body: dict[str, Any]) -> Callable[[], None]:
        url = urlsplit(self.path)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        match self.command, parts[1:]:
            case "GET", ["config"]:
                return lambda: self._json({"defaults": {}, "overrides": {}, "endpoints": _ENDPOINTS})
            case _, ["namespaces"]:
                parent = parse_qs(url.query).get("parent", [""])[0]
                return lambda: self._namespaces(body, _identifier(parent))
            case _, ["namespaces", namespace]:
                return lambda: self._namespace(_identifier(namespace))
            case _, ["namespaces", namespace, "tables"]:
                return lambda: self._tables(_identifier(namespace), body)
            case "POST", ["namespaces", namespace, "tables", table]:
                return lambda: self._commit((*_identifier(namespace), table), body)
            case _, ["namespaces", namespace, "tables", table]:
                return lambda: self._table((*_identifier(namespace), table))
            case "HEAD", ["namespaces", namespace, "views", view]:
                is_view = (*_identifier(namespace), view) in self.server.mini.views
                return lambda: _send(self, 204 if is_view else 404, b"")
        raise NotImplementedError(f"Cannot answer {self.command} {self.path}")

    def _json(self, answer: dict[str, Any]) -> None:
        _send(self, 200, json.dumps(answer).encode())

    def _namespaces(self, body: dict[str, Any], parent: tuple[str, ...]) -> None:
        mini = self.server.mini
        if self.command == "GET":
            return self._list("namespaces", parent, sorted(name for name in mini.namespaces if name[:-1] == parent))
        mini.create_namespace(tuple(body["namespace"]), body.get("properties", {}))
        return self._json({"namespace": body["namespace"], "properties": body.get("properties", {})})

    def _namespace(self, namespace: tuple[str, ...]) -> None:
        mini = self.server.mini
        properties = mini.namespace(namespace)
        if self.command == "GET":
            return self._json({"namespace": namespace, "properties": properties})
        if self.command == "DELETE":
            mini.drop_namespace(namespace)
        return _send(self, 204, b"")

    def _tables(self, namespace: tuple[str, ...], body: dict[str, Any]) -> None:
        mini = self.server.mini
        if self.command == "POST":
            return _send(self, 200, mini.create(namespace, body))
        found = [{"namespace": table[:-1], "name": table[-1]} for table in mini.tables(namespace)]
        return self._list("identifiers", namespace, found)

    def _list(self, key: str, namespace: tuple[str, ...], found: list[Any]) -> None:
        """Answer with the names, or with a page of them if the client asks for pages."""
        mini, asked = self.server.mini, parse_qs(urlsplit(self.path).query)
        mini.check_right("list")
        mini.check_allowed(namespace)
        start = int(asked.get("pageToken", ["0"])[0])
        end = start + int(asked.get("pageSize", [len(found)])[0])
        answer = {key: found[start:end]} | ({"next-page-token": str(end)} if end < len(found) else {})
        fault = mini.next_list_fault()
        return _spoil(self, fault, json.dumps(answer).encode()) if fault else self._json(answer)

    def _table(self, table: tuple[str, ...]) -> None:
        mini = self.server.mini
        if self.command == "GET":
            mini.check_right("load")
            mini.check_allowed(table)
            fault = mini.next_load_fault()
            answer = mini.load(table)
            return _spoil(self, fault, answer) if fault else _send(self, 200, answer)
        if self.command == "DELETE":
            mini.drop(table)
        elif table not in mini.tables(table[:-1]):
            raise NoSuchTableError(f"Table does not exist: {'.'.join(table)}")
        return _send(self, 204, b"")

    def _commit(self, table: tuple[str, ...], body: dict[str, Any]) -> None:
        mini = self.server.mini
        mini.check_right("commit")
        fault = mini.next_fault(body)
        if fault is None:
            return _send(self, 200, mini.commit(table, body))
        if fault.when == "before" and fault.kind != "hang":
            return _spoil(self, fault, _NOT_LANDED)
        if fault.when == "before":
            mini.hold()
            return _send(self, 200, mini.commit(table, body))
        answer = mini.commit(table, body)
        if fault.kind != "hang":
            return _spoil(self, fault, answer)
        mini.hold()
        return _send(self, 200, answer)


def _identifier(path_part: str) -> tuple[str, ...]:
    return tuple(path_part.split(_NAMESPACE_SEPARATOR)) if path_part else ()


def _error_body(status: int, kind: str, message: str) -> bytes:
    """The REST specification's error model as JSON."""
    return json.dumps({"error": {"message": message, "type": kind, "code": status}}).encode()


def _send(
    handler: BaseHTTPRequestHandler, status: int, body: bytes, content_type: str = "application/json", **more: str
) -> None:
    """Answer the request; HEAD gets the headers only."""
    handler.send_response(status)
    handler.send_header("Content-Type", content_type)
    handler.send_header("Content-Length", str(len(body)))
    for name, value in more.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


def _spoil(handler: BaseHTTPRequestHandler, fault: Fault, answer: bytes) -> None:
    """Answer a commit as `fault` says instead of with `answer`; a `hang` is not spoiled but delayed by the server."""
    if isinstance(fault.kind, int):
        kind = "CommitFailedException" if fault.kind == 409 else "InjectedFault"
        more = {"Retry-After": fault.retry_after} if fault.retry_after else {}
        _send(handler, fault.kind, _error_body(fault.kind, kind, f"injected {fault.when} the request"), **more)
    elif fault.kind == "reset":
        _reset(handler.connection)
    elif fault.kind == "truncated":
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(answer)))
        handler.end_headers()
        handler.wfile.write(answer[: len(answer) // 2])
    elif fault.kind == "html":
        _send(handler, 200, b"<html><body>Please log in</body></html>", "text/html")


def _reset(connection: socket.socket) -> None:
    # Lingering for zero seconds makes the kernel send RST in place of an orderly end. The socket is really closed
    # when the handler drops its own file objects over it.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
