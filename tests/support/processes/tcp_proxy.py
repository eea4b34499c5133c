"""A TCP proxy on loopback whose connections a test can cut."""

import contextlib
import socket
import threading
from collections.abc import Callable

Inside = Callable[[], contextlib.AbstractContextManager[None]]


class Proxy:
    """Forwards to `target` (host:port); `cut` breaks what is connected and refuses what is new.

    It connects from `inside`, which may be a network other than the one that it listens on.
    """

    def __init__(self, target: str, inside: Inside = contextlib.nullcontext) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._inside = inside
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._cut = False
        self._flows = threading.Event()
        self._flows.set()
        self._start(self._accept)

    def cut(self) -> None:
        self.let_go()
        with self._lock:
            self._cut = True
            connections, self._open = self._open, []
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Keeps what comes from now on until it is let go."""
        self._flows.clear()

    def let_go(self) -> None:
        self._flows.set()

    def heal(self) -> None:
        with self._lock:
            self._cut = False

    def close(self) -> None:
        self.cut()
        self._server.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            with self._lock:
                if self._cut:
                    near.close()
                    continue
                try:
                    with self._inside():
                        far = socket.create_connection(self._target, timeout=5)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                self._open += [near, far]
            self._start(self._pump, near, far)
            self._start(self._pump, far, near)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name="proxy", daemon=True)  # type: ignore[arg-type]
        thread.start()
        self._threads.append(thread)  # after its start, before which nobody may wait for its end
