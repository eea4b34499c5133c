"""The objects that run the operator: they keep Kubernetes' schema, and grant as little as works."""

import json
import sys
from typing import Any

import pytest
import yaml
from support.emulated_kubernetes.api import rbac
from support.kubernetes.operator_parts import KUEUE, OWN, operator_manifests, operator_rules
from support.kubernetes.pod_jobs import check_schema, of_kind

from spotelastic.cli.main import main
from spotelastic.kubernetes.cluster_manifests import control_rules
from spotelastic.kubernetes.provider.kube_names import KubeNames


@pytest.mark.parametrize("namespace", ["", "ml"])
def test_all_objects_keep_the_schema_of_kubernetes(namespace: str) -> None:
    made = operator_manifests("r/tools:1", namespace)
    for each in made:
        check_schema(each)
        assert each["metadata"].get("namespace", "") == namespace
    assert {each["kind"] for each in made} == {
        *("ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "Deployment")
    }


def test_the_operator_is_not_root_writes_to_one_volume_and_is_reached_by_nobody() -> None:
    made = operator_manifests("r/tools:1")
    pod = of_kind("Deployment", made)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["livenessProbe"]["exec"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert {each["name"]: list(each) for each in pod["volumes"]} == {
        name: ["name", "emptyDir"] for name in ("files", "tmp")
    }
    assert container["resources"]["limits"]["memory"]
    assert of_kind("NetworkPolicy", made)["spec"]["ingress"] == []


def test_it_may_hand_on_what_a_control_pod_may_and_reads_no_secret() -> None:
    rules = operator_rules()
    handed_on = rbac.single(control_rules(KubeNames("train")))
    for each in handed_on:
        assert rbac.allows(rules, each), f"the Role of a cluster is refused for {each}"
    known = {(group, what, verb) for group, what, verbs in OWN + KUEUE for verb in verbs}
    known |= {(each.group, each.resource, each.verb) for each in handed_on}
    assert {(each.group, each.resource, each.verb) for each in rbac.single(rules)} == known
    assert "*" not in json.dumps(rules)
    assert not {"secrets", "pods/exec"} & {each.resource for each in rbac.single(rules)}


def test_rules_allow_what_they_name_in_their_namespace_alone() -> None:
    rule = {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get"]}
    roles = [{"metadata": {"name": "r", "namespace": "ml"}, "rules": [rule]}]
    binding: dict[str, Any] = {
        "metadata": {"name": "b", "namespace": "ml"},
        "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "a"}],
    }

    def may(account: str, namespace: str, *asked: str) -> bool:
        rules = rbac.rules_of(account, namespace, roles, [binding])
        return rbac.allows(rules, rbac.asked(*asked))

    assert may("ml:a", "ml", "GET", "", "pods", "p", "")
    assert may("ml:a", "ml", "GET", "", "pods", "p", "log")
    for account, namespace, asked in (
        ("ml:b", "ml", ("GET", "", "pods", "p", "")),
        ("other:a", "ml", ("GET", "", "pods", "p", "")),
        ("ml:a", "other", ("GET", "", "pods", "p", "")),
        ("ml:a", "ml", ("GET", "", "pods", "", "")),
        ("ml:a", "ml", ("GET", "apps", "pods", "p", "")),
        ("ml:a", "ml", ("DELETE", "", "pods", "p", "")),
    ):
        assert not may(account, namespace, *asked)


def test_rules_that_name_objects_allow_these_alone() -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"], "resourceNames": ["a"]}]
    assert rbac.allows(rules, rbac.asked("PATCH", "", "pods", "a", ""))
    for asked in (("PATCH", "b"), ("GET", ""), ("POST", "")):
        assert not rbac.allows(rules, rbac.asked(asked[0], "", "pods", asked[1], ""))


def test_the_command_prints_what_is_applied_and_asks_for_an_image(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["spotelastic", "kube", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    code, out, _ = run("operator", "--render", "--image", "r/tools:1")
    kinds = [each["kind"] for each in yaml.safe_load_all(out)]
    assert code == 0 and kinds[0] == "CustomResourceDefinition" and "Deployment" in kinds
    code, out, err = run("operator", "--render")
    assert (code, out) == (2, "") and "--image" in err
    code, out, err = run("operator", "--render", "--image", "r/tools: 1")
    assert (code, out) == (2, "") and "--image" in err
    code, out, _ = run("crd")
    assert code == 0 and "elasticjobs.spotelastic.internal" in out
