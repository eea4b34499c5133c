"""Says in words for users why a call to a cluster's API server has failed, and what to do next."""

import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spotelastic.errors import EnvironmentFailure, SpotelasticError, Unavailable
from spotelastic.kubernetes import elastic_job

if TYPE_CHECKING:
    from httpx2 import HTTPStatusError

NO_LOGIN, NOT_FOUND, CONFLICT, TOO_MANY = 401, 404, 409, 429
MOST_TEXT = 300
"""Most characters that are told of an answer which is no JSON."""
_NO_NAMESPACE = re.compile(r'namespaces "([^"]+)" not found')


class Missing(EnvironmentFailure):
    """There is no such object."""


class Conflicting(EnvironmentFailure):
    """The object exists already, or has changed since it was read."""


class NoNamespace(EnvironmentFailure):
    """There is no such namespace."""


class Undefined(EnvironmentFailure):
    """The cluster has no objects of such a kind at all."""

    def __init__(self, kind: str) -> None:
        needed = {
            elastic_job.KIND: ": `spotelastic kube crd | kubectl apply -f -`",
            "Workload": ": a queue needs Kueue 0.15 or newer",
        }
        told = f"the resource {kind} is not defined in this cluster{needed.get(kind, '')}"
        super().__init__(told)


@dataclass(frozen=True, slots=True)
class NamedServer:
    """Where calls go, as people are told of it."""

    address: str = ""
    """URL; "": not known."""
    context: str = ""
    """Context of the kubeconfig; "": there is no kubeconfig, as in a pod."""
    is_chosen: bool = False
    """Whether the user has named the context."""

    def __str__(self) -> str:
        address = f" {self.address}" if self.address else ""
        context = f" (context {self.context})" if self.context else ""
        return f"the cluster's API server{address}{context}"

    @property
    def kubectl(self) -> str:
        """How a command for the same cluster begins."""
        return f"kubectl --context {self.context}" if self.is_chosen else "kubectl"


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One call, as its errors are told."""

    what: str
    """What it does, after "cannot"."""
    namespace: str
    server: NamedServer
    missing: Collection[int] = (NOT_FOUND,)
    """Codes by which the server says that there is no such object."""

    def refused(self, code: int, message: str) -> SpotelasticError:
        """Return the error for an answer that is a failure."""
        if unknown := _NO_NAMESPACE.fullmatch(message):
            create = f"{self.server.kubectl} create namespace {unknown[1]}"
            return NoNamespace(f"there is no namespace {unknown[1]}: create it with `{create}`")
        told = f"cannot {self.what} in the namespace {self.namespace}: {message}"
        if code in self.missing:
            return Missing(told)
        if code == CONFLICT:
            return Conflicting(told)
        if code == NO_LOGIN:
            return EnvironmentFailure(
                f"{told}: {self.server} does not accept this login: log in to the cluster again"
            )
        return Unavailable(told) if outcome(code) == "busy" else EnvironmentFailure(told)

    def unanswered(self, error: Exception) -> SpotelasticError:
        """Return the error for a call that nobody has answered."""
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return EnvironmentFailure(
                f"cannot {self.what}: the certificate of {self.server} is not trusted "
                f"({words(error)}): check certificate-authority in the kubeconfig"
            )
        do = ""
        if self.server.context:
            do = (
                ": check that the cluster runs and that this machine reaches it, or name another "
                "context with --context"
            )
        return Unavailable(
            f"cannot {self.what}: {self.server} does not answer ({words(error)}){do}"
        )

    def without_login(self, error: Exception) -> SpotelasticError:
        """Return the error for a call that could not be made: its credentials are missing."""
        return EnvironmentFailure(
            f"cannot {self.what}: no login to {self.server} ({words(error)}): check the user of "
            "this context in the kubeconfig"
        )


def outcome(code: int) -> str:
    """Return the word by which calls with this answer are counted."""
    if code == TOO_MANY or code >= 500:
        return "busy"
    return "missing" if code == NOT_FOUND else "refused"


def words(error: Exception) -> str:
    """Return the text of an error, or its type where it has none."""
    return str(error) or type(error).__name__


def answer(error: "HTTPStatusError") -> tuple[int, str]:
    """Return the code of a failure, and what the server says of it.

    An answer that is streamed has not been read yet, and may be no JSON: a path that is not served
    has a page.
    """
    text, response = "", error.response
    with suppress(Exception):  # whatever is wrong with the answer, its code is known
        text = response.read().decode(errors="replace").strip()
        text = str(response.json()["message"])
    told = text[:MOST_TEXT] or response.reason_phrase
    return response.status_code, told
