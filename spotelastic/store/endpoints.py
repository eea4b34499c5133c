"""Parses the addresses of etcd members as `--rdzv-endpoint` and `--rdzv-conf` give them."""

import re
from collections.abc import Mapping

from spotelastic_checkpoints import addresses

from spotelastic.errors import UsageError

_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%[^\[\]/]+)?\]|[^\s:/\[\]]+)(?::(\d*))?")
"""A host, or an IPv6 address in brackets, and perhaps a port."""


def endpoints_of(text: str, port: int) -> tuple[str, ...]:
    """Return "host:port" of each member; `port` is used where the text has none.

    IPv6 addresses are in brackets. http:// or https:// may stand before each. Raises `UsageError`.
    """
    endpoints = []
    for part in filter(None, text.split(",")):
        scheme, _, rest = part.rpartition("://")
        if scheme not in ("", "http", "https"):
            raise UsageError(f"--rdzv-endpoint {part}: only http:// and https:// are supported")
        found = _ENDPOINT.fullmatch(rest)
        if found is None or (found[2] and not is_port(found[2])):
            several = rest.count(":") <= 1
            how = "several with commas" if several else "an IPv6 address stands in brackets"
            raise UsageError(f"--rdzv-endpoint {part}: give HOST:PORT, {how}")
        # The interface of a link-local address is escaped in URLs.
        host = addresses.bare(found[1]).replace("%25", "%")
        endpoints.append(addresses.join(host, found[2] or port))
    return tuple(endpoints)


def is_encrypted(text: str, conf: Mapping[str, str]) -> bool:
    """Return whether TLS is asked for, by https:// or by `--rdzv-conf protocol=https`.

    Raises `UsageError` where the two contradict each other.
    """
    protocol = conf.get("protocol", "")
    if protocol not in ("", "http", "https"):
        raise UsageError(f"--rdzv-conf protocol={protocol}: give http or https")
    schemes = {part.rpartition("://")[0] for part in text.split(",")}
    if len(schemes) > 1:
        raise UsageError(f"--rdzv-endpoint {text}: give all of them the same scheme")
    (scheme,) = schemes
    if scheme and protocol and scheme != protocol:
        raise UsageError(f"--rdzv-endpoint {text}: --rdzv-conf says protocol={protocol}")
    return "https" in (scheme, protocol)


def is_port(text: str) -> bool:
    """Return whether the text is a valid port."""
    return text.isdecimal() and int(text) < 65536
