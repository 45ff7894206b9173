"""A real server on this machine that plays the model hub, well or badly."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from experiment.model import hub

COMMIT = "c" * 40


class MiniHub:
    """Serves one model in pieces. Misbehaves as it is told."""

    def __init__(self, files: dict[str, bytes], name: str = "lab/tiny") -> None:
        self.files, self.name = files, name
        self.pause_s = 0.0  # between pieces
        self.hang_at: int | None = None  # byte of the weights after which nothing comes
        self.refuse: int | None = None  # status of every file
        self.listing: bytes | None = None  # instead of the real one
        self.requests: list[str] = []
        self.closing = threading.Event()
        owner = self

        class Handler(_Handler):
            mini = owner

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()


class _Handler(BaseHTTPRequestHandler):
    mini: MiniHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        self.mini.requests.append(format % args)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith(f"/api/models/{self.mini.name}"):
            return self._list()
        prefix = f"/{self.mini.name}/resolve/"
        file = path.removeprefix(prefix).partition("/")[2] if path.startswith(prefix) else ""
        if self.mini.refuse and file:
            return self._answer(self.mini.refuse, b"", {"X-Error-Code": "GatedRepo"})
        if file in self.mini.files:
            return self._file(file)
        code = "EntryNotFound" if path.startswith(prefix) else "RepoNotFound"
        return self._answer(404, b"{}", {"X-Error-Code": code})

    def _list(self) -> None:
        siblings = [{"rfilename": n, "size": len(d)} for n, d in self.mini.files.items()]
        listing = {"id": self.mini.name, "sha": COMMIT, "siblings": siblings}
        body = self.mini.listing or json.dumps(listing).encode()
        self._answer(200, body, {"Content-Type": "application/json"})

    def _file(self, file: str) -> None:
        data = self.mini.files[file]
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
        self._answer(200, data, headers, slow=file.endswith(".safetensors"))

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str], slow: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        piece = hub.PIECE_BYTES
        for start in range(0, len(body), piece):
            if slow and self.mini.hang_at is not None and start >= self.mini.hang_at:
                self.mini.closing.wait(30)
                return
            self.wfile.write(body[start : start + piece])
            if slow:
                time.sleep(self.mini.pause_s)
