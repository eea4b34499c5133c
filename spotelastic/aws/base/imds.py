"""Reads the EC2 instance metadata service (IMDSv2) from inside an instance.

Uses the standard library alone: the agent polls it every second and must not load boto3 for that.
"""

import json
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from spotelastic.errors import Unavailable

DEFAULT_URL = "http://169.254.169.254"
TOKEN_TTL = 21600  # seconds, the longest that IMDS grants
_TOKEN = "X-aws-ec2-metadata-token"


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

    def interruption(self) -> float | None:
        """Return when AWS will stop or terminate this spot instance (epoch seconds); None: no
        notice."""
        text = self.get("spot/instance-action")
        return None if text is None else _moment(text, "spot/instance-action", "time")

    def rebalance(self) -> float | None:
        """Return when a rebalance recommendation was issued (epoch seconds); None if none was."""
        path = "events/recommendations/rebalance"
        text = self.get(path)
        return None if text is None else _moment(text, path, "noticeTime")

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
            raise Unavailable(f"the metadata service answered {status} for {path}")
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
            return response.status, response.read().decode()
        except (OSError, HTTPException, UnicodeDecodeError) as error:
            raise Unavailable(f"the metadata service did not answer for {path}: {error}") from error
        finally:
            connection.close()


def _object(text: str, path: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Unavailable(f"the metadata service gave no JSON for {path}: {error}") from error
    if not isinstance(value, dict):
        raise Unavailable(f"the metadata service gave no object for {path}")
    return value


def _moment(text: str, path: str, field: str) -> float:
    try:
        moment = datetime.fromisoformat(_object(text, path)[field])
    except (KeyError, TypeError, ValueError) as error:
        raise Unavailable(f"the metadata service gave no usable {field} for {path}") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
