"""The Helm chart has the objects that `kube operator --render` prints, and asks for an image."""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from support.kubernetes.operator_parts import operator_manifests

from spotelastic import __version__
from spotelastic.client.operator.definition import IMAGE, PLACE

CHART = Path(__file__).parents[3] / "infra" / "helm"


def test_its_template_has_two_expressions_alone_and_nothing_is_left_to_fill_in() -> None:
    text = (CHART / "templates/operator.yaml").read_text()
    assert set(re.findall(r"\{\{.*?\}\}", text)) == {IMAGE, PLACE}
    made = operator_manifests("r/spotelastic:1", "ml")
    assert "{{" not in str(made)
    assert made == list(
        yaml.safe_load_all(text.replace(IMAGE, "r/spotelastic:1").replace(PLACE, "ml"))
    )


def test_the_chart_is_of_this_version_and_asks_for_an_image() -> None:
    chart: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"].split(".")[:2] == __version__.split(".")[:2]
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert schema["required"] == list(values) == ["image"]
    assert schema["properties"]["image"]["minLength"] == 1, "an empty image is refused"
