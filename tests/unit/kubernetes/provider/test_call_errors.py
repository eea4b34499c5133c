"""What is said when a call to the API server fails: what was wrong, where, and what to do."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from lightkube import Client, KubeConfig

from spotelastic.errors import EnvironmentFailure, SpotelasticError, Unavailable, UsageError
from spotelastic.kubernetes.elastic_job import KIND
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider import api_client as kube_api
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.call_errors import (
    Conflicting,
    Missing,
    NamedServer,
    NoNamespace,
    Undefined,
)

SERVER = NamedServer("https://10.0.0.1:6443", "west", is_chosen=True)
NEW: Manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}


def answering(answer: Callable[[httpx2.Request], httpx2.Response]) -> KubeApi:
    """An API whose server answers so; the client is the real one."""
    client = Client(config=KubeConfig.from_dict(CONFIG), transport=httpx2.MockTransport(answer))
    return KubeApi(client, "ml", SERVER)


def refusing(code: int, message: str) -> KubeApi:
    status = {"kind": "Status", "message": message, "code": code}
    return answering(lambda _: httpx2.Response(code, json=status))


CONFIG = {
    "apiVersion": "v1", "kind": "Config", "current-context": "a",
    "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "a", "user": {}}],
    "contexts": [
        {"name": name, "context": {"cluster": "a", "user": "a"}} for name in ("a", "b")
    ],
}  # fmt: skip


def test_a_resource_that_is_not_defined_is_told_with_what_defines_it() -> None:
    page = answering(lambda _: httpx2.Response(404, text="404 page not found\n"))
    for api in (page, refusing(404, "the server could not find the requested resource")):
        with pytest.raises(Undefined, match=r"`spotelastic kube crd \| kubectl apply -f -`"):
            api.found(KIND, {})
    assert page.get(KIND, "train") is None


def test_a_namespace_that_is_missing_is_told_with_the_command_that_makes_it() -> None:
    with pytest.raises(NoNamespace) as told:
        refusing(404, 'namespaces "ml" not found').create(NEW)
    assert str(told.value) == (
        "there is no namespace ml: create it with `kubectl --context west create namespace ml`"
    )


@pytest.mark.parametrize(
    ("code", "message", "kind", "told"),
    [
        (404, 'pods "x" not found', Missing, 'in the namespace ml: pods "x" not found'),
        (409, "changed", Conflicting, "changed"),
        (401, "Unauthorized", EnvironmentFailure, "log in to the cluster again"),
        (403, "is forbidden", EnvironmentFailure, "in the namespace ml: is forbidden"),
        (429, "too many", Unavailable, "too many"),
        (503, "starting", Unavailable, "starting"),
    ],
)
def test_a_list_that_is_refused_is_told_as_any_other_call(
    code: int, message: str, kind: type[SpotelasticError], told: str
) -> None:
    with pytest.raises(kind, match=told):
        refusing(code, message).create(NEW)
    if code == 404:
        return
    with pytest.raises(kind, match=told):
        refusing(code, message).found("Pod", {})


def test_a_server_that_does_not_answer_is_named_with_its_context(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "kubeconfig").write_text(json.dumps(CONFIG))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with pytest.raises(Unavailable) as told:
        kube_api.connect().found("ConfigMap", {})
    assert "API server https://127.0.0.1:1 (context a) does not answer" in str(told.value)
    assert "another context with --context" in str(told.value)


def test_a_certificate_that_is_not_trusted_is_no_silence() -> None:
    def distrust(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate")

    with pytest.raises(EnvironmentFailure, match=r"certificate of .* \(context west\) is not trus"):
        answering(distrust).get("Pod", "x")


def test_a_login_that_the_kubeconfig_leaves_to_a_program_may_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    its = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": str(tmp_path / "none")}
    config = {**CONFIG, "users": [{"name": "a", "user": {"exec": its}}]}
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with pytest.raises(EnvironmentFailure, match=r"no login to .*: check the user of this context"):
        kube_api.connect().get("Pod", "x")


def test_contexts_that_there_are_are_listed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(file))
    file.write_text(json.dumps(CONFIG))
    with pytest.raises(UsageError, match=r"^--context zz: there is no such context; .* are: a, b$"):
        kube_api.connect("zz")
    for text in ("clusters: [", "- 1", ""):
        file.write_text(text)
        with pytest.raises(UsageError, match="no Kubernetes cluster is configured"):
            kube_api.connect()
