"""Patches moto's CloudWatch Logs: lines are in files, and streams are chosen by prefix."""

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from moto.logs.models import LogEvent, LogGroup, LogsBackend, LogStream, logs_backends
from moto.logs.responses import LogsResponse

from spotelastic.aws.messaging.log_group import KEPT_DAYS
from spotelastic.clock import wall
from spotelastic.local.base.kept_logs import GROUPS, KeptLogs, cluster_of
from spotelastic.local.cloud import ACCOUNT, REGIONS
from spotelastic.local.moto_patches.patch import Patches

_DAY = 24 * 3600.0


class KeptEvents:
    """The lines of a stream, read from its file when they are first asked for.

    moto takes it for a list.
    """

    def __init__(self, kept: KeptLogs, cluster: str, stream: str) -> None:
        self._kept = kept
        self._cluster = cluster
        self._stream = stream
        self._held: list[LogEvent] | None = None

    def __iter__(self) -> Iterator[LogEvent]:
        return iter(list(self._read()))

    def __bool__(self) -> bool:
        return bool(self._read())

    def __iadd__(self, new: Sequence[LogEvent]) -> "KeptEvents":
        held = self._read()
        self._kept.append(self._cluster, self._stream, [(e.timestamp, e.message) for e in new])
        held.extend(new)
        return self

    def _read(self) -> list[LogEvent]:
        if self._held is None:
            self._held = [
                LogEvent(at, {"timestamp": at, "message": text})
                for at, text in self._kept.read(self._cluster, self._stream)
            ]
        return self._held


def install(patches: Patches, kept: KeptLogs) -> None:
    """Patch the log groups of clusters, of this account and these regions.

    Lines of the regions share a folder. The next cloud has all of them in its first region.
    """
    _install_files(patches, kept)
    _install_prefix(patches)
    kept.forget(wall() - KEPT_DAYS * _DAY)
    backend = logs_backends[ACCOUNT][REGIONS[0]]
    for cluster in kept.clusters():
        group = backend.create_log_group(GROUPS + cluster, {})
        group.set_retention_policy(str(KEPT_DAYS))
        for name in kept.streams(cluster):
            group.create_log_stream(name)
            at = kept.written_at(cluster, name)
            group.streams[name].last_ingestion_time = datetime.fromtimestamp(at, UTC).replace(
                tzinfo=None
            )


def _install_files(patches: Patches, kept: KeptLogs) -> None:
    reason = "moto's log groups end with its process"

    def its(group: LogGroup) -> str | None:
        here = group.account_id == ACCOUNT and group.region in REGIONS
        return cluster_of(group.name) if here else None

    @patches.method(LogGroup, "create_log_stream", reason)
    def create_log_stream(original: Callable[..., Any], group: LogGroup, name: str) -> None:
        original(group, name)
        if cluster := its(group):
            kept.create(cluster, name)
            stream: LogStream = group.streams[name]
            stream.events = KeptEvents(kept, cluster, name)  # type: ignore[assignment]

    @patches.method(LogsBackend, "delete_log_group", reason)
    def delete_log_group(original: Callable[..., Any], backend: LogsBackend, name: str) -> None:
        group = backend.groups.get(name)
        original(backend, name)
        if group is not None and (cluster := its(group)):
            kept.delete(cluster)


def _install_prefix(patches: Patches) -> None:
    @patches.method(LogsResponse, "filter_log_events", "moto ignores logStreamNamePrefix")
    def filter_log_events(original: Callable[..., Any], response: Any) -> Any:
        begin = response._get_param("logStreamNamePrefix")
        group = response.logs_backend.groups.get(response._get_param("logGroupName"))
        if not begin or group is None:
            return original(response)
        names = [name for name in group.streams if name.startswith(begin)]
        asked = {name: response._get_param(name) for name in ("startTime", "endTime", "limit")}
        events, token, searched = (
            response.logs_backend.filter_log_events(
                group.name,
                names,
                asked["startTime"],
                asked["endTime"],
                asked["limit"],
                response._get_param("nextToken"),
                response._get_param("filterPattern"),
                response._get_param("interleaved", False),
            )
            if names
            else ([], None, [])
        )
        return json.dumps({"events": events, "nextToken": token, "searchedLogStreams": searched})
