"""A REST catalog that serves the tables of a SQLite catalog, read-only, in a process of its own.

    python -m benchmarks.catalog_server DATABASE

prints its URI, and ends when its standard input is closed.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of a client that lists and loads tables. Tables are known by namespace and name."""

    tables: ClassVar[dict[str, dict[str, str]]] = {}
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        match [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")][1:]:
            case ["config"]:
                self._send({"defaults": {}, "overrides": {}})
            case ["namespaces"] if "parent=" not in self.path:
                self._send({"namespaces": [[name] for name in self.tables]})
            case ["namespaces"]:
                self._send({"namespaces": []})
            case ["namespaces", namespace, "tables"]:
                self._send({"identifiers": [{"namespace": [namespace], "name": n} for n in self.tables[namespace]]})
            case ["namespaces", namespace, "tables", name]:
                self._send_table(self.tables[namespace][name])

    def _send_table(self, location: str) -> None:
        metadata = Path(location.removeprefix("file://")).read_bytes()
        head = f'{{"metadata-location": {json.dumps(location)}, "config": {{}}, "metadata": '
        self._send_bytes(head.encode() + metadata + b"}")

    def _send(self, answer: object) -> None:
        self._send_bytes(json.dumps(answer).encode())

    def _send_bytes(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def main() -> None:
    """Serve until standard input ends."""
    known: defaultdict[str, dict[str, str]] = defaultdict(dict)
    with sqlite3.connect(sys.argv[1]) as database:
        rows = database.execute("SELECT table_namespace, table_name, metadata_location FROM iceberg_tables")
        for namespace, name, location in rows:
            known[namespace][name] = location
    _Handler.tables = dict(known)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
