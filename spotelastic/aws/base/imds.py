"""Reads the EC2 instance metadata service (IMDSv2) from inside an instance.

Uses the standard library alone: the agent polls it every second and must not load boto3 for that.

Whatever it answers is either a value or `Unavailable`: a proxy's page of HTML, half a document, one
without an end. So no answer ends the thread that asked.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from spotelastic.aws.base.moments import moment
from spotelastic.errors import Unavailable

DEFAULT_URL = "http://169.254.169.254"
TOKEN_TTL = 21600  # seconds, the longest that IMDS grants
LONGEST = 65_536
"""Bytes of the longest answer that is read. The longest that the service gives have some thousand.
"""
SCHEDULED = "events/maintenance/scheduled"
ACTIVE = "active"
"""State of a scheduled event that is still to come, or is under way."""
_TOKEN = "X-aws-ec2-metadata-token"


@dataclass(frozen=True, slots=True)
class InstanceAction:
    """What AWS is about to do with a spot instance."""

    action: str
    """AWS's word: terminate, stop or hibernate."""
    at: float
    """When it begins, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class ScheduledEvent:
    """Maintenance that AWS has scheduled for an instance. Times are in seconds since the epoch."""

    id: str
    code: str
    """AWS's word: system-reboot, instance-reboot, system-maintenance, instance-retirement or
    instance-stop.
    """
    state: str
    """`ACTIVE`, or a word for one that is over: completed, canceled."""
    begins: float
    """Not before this time."""


class UnusableAnswer(Unavailable):
    """The service has answered one question, but not in a way that can be used."""


class Imds:
    """A client for one thread.

    Each request takes at most `timeout` seconds; failures are `Unavailable`.
    """

    def __init__(self, base_url: str = DEFAULT_URL, timeout: float = 1.0) -> None:
        url = urlsplit(base_url)
        self._host = url.hostname or ""
        self._port = url.port or 80
        self._timeout = timeout
        self._token = ""

    def get(self, path: str) -> str | None:
        """Return the document at `path` below `/latest/meta-data/`; None if there is none (404)."""
        return self._read(f"/latest/meta-data/{path}")

    def identity(self) -> dict[str, Any]:
        """Return the instance identity document: instance id, type, region, zone, account."""
        text = self._read("/latest/dynamic/instance-identity/document")
        if text is None:
            raise Unavailable("the metadata service has no instance identity document")
        return _object(text, "instance-identity/document")

    def interruption(self) -> InstanceAction | None:
        """Return what AWS will do with this spot instance, and when; None: no notice."""
        path = "spot/instance-action"
        text = self.get(path)
        if text is None:
            return None
        found = _object(text, path)
        action = found.get("action")
        return InstanceAction(action if isinstance(action, str) else "", _at(found, path, "time"))

    def rebalance(self) -> float | None:
        """Return when a rebalance recommendation was issued (epoch seconds); None if none was."""
        path = "events/recommendations/rebalance"
        text = self.get(path)
        return None if text is None else _at(_object(text, path), path, "noticeTime")

    def scheduled(self) -> list[Any]:
        """Return the maintenance that is scheduled for this instance, for `read_scheduled`.

        The entries are returned as they are, so that what is wrong with one does not hide another.
        """
        found = _json(self.get(SCHEDULED) or "[]", SCHEDULED)
        if not isinstance(found, list):
            raise UnusableAnswer(f"the metadata service gave no list for {SCHEDULED}")
        return found

    def lifecycle_state(self) -> str:
        """Return the state that the Auto Scaling group wants, e.g. InService; "" if none."""
        return (self.get("autoscaling/target-lifecycle-state") or "").strip()

    def tags(self) -> dict[str, str]:
        """Return the instance's tags; they must be enabled in its metadata options."""
        names = (self.get("tags/instance/") or "").split("\n")
        return {name: self.get(f"tags/instance/{name}") or "" for name in names if name}

    def _read(self, path: str) -> str | None:
        if not self._token:
            self._token = self._fetch_token()
        status, text = self._request("GET", path, {_TOKEN: self._token})
        if status == 401:  # expired, or the service was restarted
            self._token = self._fetch_token()
            status, text = self._request("GET", path, {_TOKEN: self._token})
        if status == 404:
            return None
        if status != 200:
            raise UnusableAnswer(f"the metadata service answered {status} for {path}")
        return text

    def _fetch_token(self) -> str:
        headers = {f"{_TOKEN}-ttl-seconds": str(TOKEN_TTL)}
        status, text = self._request("PUT", "/latest/api/token", headers)
        if status != 200:
            raise Unavailable(f"the metadata service answered {status} to a token request")
        return text

    def _request(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        connection = HTTPConnection(self._host, self._port, timeout=self._timeout)
        try:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            data = response.read(LONGEST)
            if response.length:
                raise ValueError(f"it is too long, or has ended after {len(data)} bytes")
            return response.status, data.decode()
        except ValueError as error:
            raise UnusableAnswer(f"the metadata service's answer for {path}: {error}") from error
        except (OSError, HTTPException) as error:
            raise Unavailable(f"the metadata service did not answer for {path}: {error}") from error
        finally:
            connection.close()


def _json(text: str, path: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableAnswer(f"the metadata service gave no JSON for {path}: {error}") from error


def _object(text: str, path: str) -> dict[str, Any]:
    value = _json(text, path)
    if not isinstance(value, dict):
        raise UnusableAnswer(f"the metadata service gave no object for {path}")
    return value


def _at(found: Mapping[str, Any], path: str, field: str) -> float:
    try:
        return moment(found.get(field))
    except ValueError as error:
        raise UnusableAnswer(f"the metadata service gave no usable {field} for {path}") from error


def read_scheduled(found: object) -> ScheduledEvent:
    """Return one entry of what is scheduled. Raises `UnusableAnswer`."""
    if not isinstance(found, dict):
        raise UnusableAnswer(f"the metadata service gave no object in {SCHEDULED}")
    begins = _at(found, SCHEDULED, "NotBefore")
    id, code, state = (str(found.get(name, "")) for name in ("EventId", "Code", "State"))
    over = str(found.get("Description", "")).startswith(("[Completed]", "[Canceled]"))
    state = "over" if over and state == ACTIVE else state
    return ScheduledEvent(id or f"{code} at {begins:.0f}", code, state, begins)
