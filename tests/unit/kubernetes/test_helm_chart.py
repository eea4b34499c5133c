"""The Helm chart installs what `kube operator --render` prints. After a change of that, write it
anew: `cd tests && PYTHONPATH=. ../.venv/bin/python -m unit.kubernetes.test_helm_chart`.
"""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from support.kubernetes.pod_jobs import check_schema

from spotelastic import __version__
from spotelastic.client.operator.definition import definition
from spotelastic.kubernetes.operator_manifests import operator_manifests
from spotelastic.kubernetes.yaml_text import yaml_text

CHART = Path(__file__).parents[3] / "infra" / "helm"
IMAGE, PLACE = "{{ .Values.image }}", "{{ .Release.Namespace }}"


def written() -> dict[str, str]:
    """The files of the chart that follow from the product, by their paths."""
    return {
        "crds/elasticjobs.yaml": yaml_text([definition()]),
        "templates/operator.yaml": yaml_text(operator_manifests(IMAGE, PLACE)),
    }


def test_the_chart_is_what_the_command_prints() -> None:
    for path, text in written().items():
        assert (CHART / path).read_text() == text, f"{path} is out of date"


def test_a_release_has_the_operators_objects_and_nothing_is_left_to_fill_in() -> None:
    """Its templates have two expressions alone, which helm replaces by texts."""
    text = (CHART / "templates/operator.yaml").read_text()
    assert set(re.findall(r"\{\{.*?\}\}", text)) == {IMAGE, PLACE}
    filled = text.replace(IMAGE, "r/spotelastic:1").replace(PLACE, "ml")
    made = list(yaml.safe_load_all(filled))
    assert made == operator_manifests("r/spotelastic:1", "ml")
    for each in made:
        check_schema(each)


def test_the_chart_is_of_this_version_and_asks_for_an_image() -> None:
    chart: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"].split(".")[:2] == __version__.split(".")[:2]
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert schema["required"] == list(values) == ["image"]
    assert schema["properties"]["image"]["minLength"] == 1, "an empty image is refused"


if __name__ == "__main__":
    for path, text in written().items():
        (CHART / path).parent.mkdir(parents=True, exist_ok=True)
        (CHART / path).write_text(text)
