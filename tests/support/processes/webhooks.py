"""A webhook on loopback, as receivers of notifications are tried against."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.processes.http_proxy import serving
from support.processes.patience import PATIENT

TOKEN = "t0ken-of-the-hook"
"""Part of the URL that nobody may see."""


@dataclass
class Webhook:
    """What it has heard; `statuses` are its answers to the first requests, then it takes all."""

    url: str = ""
    """As `--notify` takes it."""
    statuses: list[int] = field(default_factory=list)
    heard: list[dict[str, Any]] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)

    @property
    def titles(self) -> list[str]:
        with self.news:
            return [each["title"] for each in self.heard]

    def wait(self, count: int) -> None:
        """Until it has heard so many requests, refused ones among them."""
        with self.news:
            assert self.news.wait_for(lambda: len(self.heard) >= count, timeout=PATIENT)


@contextmanager
def webhook(*statuses: int) -> Iterator[Webhook]:
    hook = Webhook(statuses=list(statuses))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with hook.news:
                status = hook.statuses.pop(0) if hook.statuses else 200
                hook.heard.append({**told, "path": self.path, "status": status})
                hook.news.notify_all()
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Handler) as server:
        hook.url = f"json://127.0.0.1:{server.server_port}/{TOKEN}"
        yield hook
