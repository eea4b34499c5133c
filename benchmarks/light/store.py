"""An etcd store whose watches share one stream, so that one process can hold hundreds of agents.

For etcd the work is the same: a first read, a watcher and its events for each. A thread and a
stream each cost nothing on separate nodes, but would keep a few processes with hundreds of agents
busy. A stream that breaks is not resumed.
"""

import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
from pyetcd import etcdrpc as rpc

from spotelastic.store.etcd import EtcdStore
from spotelastic.store.etcd_watch import value_of
from spotelastic.store.port import Change, Reset, Sink, WatchItem
from spotelastic.store.tls import TlsFiles


class LightWatch:
    """Implements `port.Watch`."""

    def __init__(self, first: Reset, sink: Sink, requests: "queue.SimpleQueue[Any]") -> None:
        self.first, self.sink = first, sink
        self._requests = requests
        self._number: int | None = None
        self._closed = False

    def begin(self, number: int) -> None:
        """Note that etcd has created the watch, under that number."""
        self._number = number
        self.deliver([self.first])
        if self._closed:
            self.close()

    def deliver(self, items: Sequence[WatchItem]) -> None:
        if not self._closed:
            self.sink(items)

    def close(self) -> None:
        self._closed = True
        if self._number is not None:
            cancel = rpc.WatchCancelRequest(watch_id=self._number)
            self._requests.put(rpc.WatchRequest(cancel_request=cancel))


class LightStore(EtcdStore):
    def __init__(self, endpoint: str, timeout: float, tls: TlsFiles | None = None) -> None:
        super().__init__([endpoint], timeout=timeout, tls=tls)
        options = [("grpc.max_receive_message_length", -1)]
        if tls is None:
            self._channel = grpc.insecure_channel(endpoint, options=options)
        else:
            credentials = grpc.ssl_channel_credentials(*tls.read())
            self._channel = grpc.secure_channel(endpoint, credentials, options=options)
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asked: deque[LightWatch] = deque()
        self._asking = threading.Lock()
        self._stream = rpc.WatchStub(self._channel).Watch(iter(self._requests.get, None))
        self._reader = threading.Thread(target=self._read, name="watches", daemon=True)
        self._reader.start()

    def watch(self, prefix: str, sink: Sink) -> LightWatch:  # type: ignore[override]
        values, revision = self.range(prefix)
        watch = LightWatch(Reset(values, revision), sink, self._requests)
        key = prefix.encode()
        end = key[:-1] + bytes([key[-1] + 1])
        create = rpc.WatchCreateRequest(key=key, range_end=end, start_revision=revision + 1)
        with self._asking:
            self._asked.append(watch)
            self._requests.put(rpc.WatchRequest(create_request=create))
        return watch

    def close(self) -> None:
        self._requests.put(None)
        self._stream.cancel()
        self._reader.join()
        self._channel.close()
        super().close()

    def _read(self) -> None:
        watches: dict[int, LightWatch] = {}
        try:
            for response in self._stream:
                number = response.watch_id
                if response.created:  # answers come in the order of the requests
                    watches[number] = self._asked.popleft()
                    watches[number].begin(number)
                elif response.canceled:
                    del watches[number]
                else:
                    watches[number].deliver(list(_changes(response.events)))
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.CANCELLED:
                raise


def _changes(events: Any) -> Iterator[Change]:
    for event in events:
        deleted = event.type == event.EventType.DELETE
        value = None if deleted else value_of(event.kv)
        yield Change(event.kv.key.decode(), value, event.kv.mod_revision)
