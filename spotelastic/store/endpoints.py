"""Where etcd's members are, as --rdzv-endpoint says it."""

from collections.abc import Mapping

from spotelastic.errors import UsageError


def endpoints_of(text: str, port: int) -> tuple[str, ...]:
    """host:port of each; an IPv6 address stands in brackets, http:// or https:// may lead."""
    endpoints = []
    for part in filter(None, text.split(",")):
        scheme, _, rest = part.rpartition("://")
        host, given = (rest, "") if rest.endswith("]") else split(rest)
        bare = ":" in host and not host.startswith("[")
        if scheme not in ("", "http", "https"):
            raise UsageError(f"--rdzv-endpoint {part}: only http:// and https:// are spoken")
        if "/" in rest or not host or bare or (given and not is_port(given)):
            raise UsageError(f"--rdzv-endpoint {part}: give HOST:PORT, several with commas")
        endpoints.append(f"{host}:{given or port}")
    return tuple(endpoints)


def is_encrypted(text: str, conf: Mapping[str, str]) -> bool:
    """Whether TLS is asked for: by a scheme before the endpoints, or by --rdzv-conf protocol."""
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


def split(endpoint: str) -> tuple[str, str]:
    """Host and port, which may be missing."""
    host, colon, port = endpoint.rpartition(":")
    return (host, port) if colon else (endpoint, "")


def is_port(text: str) -> bool:
    return text.isdecimal() and int(text) < 65536
