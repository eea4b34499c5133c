"""Chooses the variables with which nodes boot in accounts that need some (pure).

Nodes may reach the internet by a proxy, install from an index of the account's own, or have to name
the encryption of what they store.

They are in the nodes' user data, which whoever may describe an instance can read: so neither URL
may have a password. Must never happen: what nodes tell each other, or ask their instance, goes to
the proxy. Not every program takes networks in NO_PROXY: etcd's members stand there by address.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from spotelastic.aws.base.clients import ENCRYPTION
from spotelastic.errors import UsageError
from spotelastic.model.job import AccountDemands

OWN = ("localhost", "127.0.0.1", "169.254.169.254", "fd00:ec2::254")
"""Hosts that are each node's own, its metadata service among them."""
INDEX = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX")
PROXY = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy")
NAMES = (*PROXY, *INDEX, *ENCRYPTION.values())
"""All that nodes may get. Programs read one spelling or the other."""
_HOST = re.compile(r"[\w.:/*-]+", re.ASCII)
_UNQUOTED = re.compile(r"[\w.:/%+~=?&-]+", re.ASCII)


def check(demands: AccountDemands) -> None:
    """Raise `UsageError` for URLs and hosts that nodes cannot have."""
    for flag, url in (("proxy", demands.proxy), ("index-url", demands.index_url)):
        if not url:
            continue
        its = urlsplit(url)
        if "@" in url:
            raise UsageError(
                f"--{flag}: a URL with a password would be in the user data of nodes, which many "
                "may read: let the nodes' network or security group in without one"
            )
        if its.scheme not in ("http", "https") or not its.hostname or not _UNQUOTED.fullmatch(url):
            raise UsageError(f"--{flag} {url}: expected http://HOST:PORT or https://HOST/PATH")
    for host in demands.no_proxy:
        if not _HOST.fullmatch(host):
            raise UsageError(f"--no-proxy {host}: expected a host, .DOMAIN or network")
    if demands.no_proxy and not demands.proxy:
        raise UsageError("--no-proxy: names what is reached without --proxy, which is missing")


def variables(
    demands: AccountDemands,
    members: Sequence[str],
    blocks: Iterable[str],
    endpoints: Iterable[str],
    region: str,
    domain: str,
) -> dict[str, str]:
    """Return the variables.

    `members` are the addresses of etcd's, `blocks` the networks of nodes, and `endpoints` the AWS
    services that have one in it, which are in the `domain`.
    """
    found = dict.fromkeys(INDEX, demands.index_url) if demands.index_url else {}
    if demands.proxy:
        services = (f"{each}.{region}.{domain}" for each in sorted(endpoints))
        beside = dict.fromkeys((*OWN, *members, *blocks, *services, *demands.no_proxy))
        found |= {"HTTPS_PROXY": demands.proxy, "NO_PROXY": ",".join(beside)}
    return found


def encryption(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name the encryption of objects, as this environment has them.

    Raises `UsageError` for what cannot be one.
    """
    found = {name: environment[name] for name in ENCRYPTION.values() if environment.get(name)}
    for name, value in found.items():
        if not _UNQUOTED.fullmatch(value):
            raise UsageError(f"{name}={value}: expected aws:kms, AES256, or the ARN of a key")
    return found


def exported(found: Mapping[str, str]) -> str:
    """Return the lines of a shell script that set the variables, each once: user data is short."""
    lines = [f"export {name}='{value}'\n" for name, value in found.items()]
    if "HTTPS_PROXY" in found:
        lines.append(
            "export HTTP_PROXY=$HTTPS_PROXY https_proxy=$HTTPS_PROXY http_proxy=$HTTPS_PROXY "
            "no_proxy=$NO_PROXY\n"
        )
    return "".join(lines)
