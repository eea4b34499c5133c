"""What workers boot: a Deep Learning image with PyTorch, or the next best that the region has."""

from collections.abc import Iterator
from copy import copy
from itertools import pairwise
from typing import Any

import pytest
from support.aws.account import REGION, account
from support.aws.cluster_requests import request
from support.aws.template import ACCOUNT

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.compute.images import AMAZON_LINUX, DEEP_LEARNING
from spotelastic.aws.planning.plan import plan_of
from spotelastic.errors import UsageError

TYPE = "g5.xlarge"


@pytest.fixture
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The region's parameters, with an image of its own for each of these."""
    from moto.ssm.models import ssm_backends

    with account(tmp_path_factory.mktemp("account")):
        stored = ssm_backends[ACCOUNT][REGION]._parameters
        known = next(stored[name][-1] for name in DEEP_LEARNING if stored[name])
        for number, name in enumerate(DEEP_LEARNING):
            made = copy(known)
            vars(made).update(name=name, value=f"ami-{number}")
            stored[name] = [made]
        yield stored


def image(kind: str = TYPE) -> str:
    return plan_of(request("quokka", instance_types=(kind,)), Aws(REGION), None).image


def test_the_first_image_that_the_region_has_is_taken(published: dict[str, Any]) -> None:
    for number, name in enumerate(DEEP_LEARNING):
        assert image() == f"ami-{number}"
        del published[name]
    with pytest.raises(UsageError, match="us-east-1 has none of AWS's Deep Learning images"):
        image()


@pytest.mark.usefixtures("published")
def test_without_a_gpu_it_is_amazon_linux() -> None:
    aws = Aws(REGION)
    linux = aws.ssm.get_parameter(Name=AMAZON_LINUX)["Parameter"]["Value"]
    assert image("c5.large") == linux
    assert linux != image()


def test_images_bring_pytorch_from_the_newest_to_the_oldest_and_then_drivers_alone() -> None:
    *with_torch, last = DEEP_LEARNING
    versions = [name.partition("pytorch-")[2].partition("-")[0] for name in with_torch]
    numbers = [tuple(map(int, version.split("."))) for version in versions]
    assert all(newer > older for newer, older in pairwise(numbers))
    assert "pytorch" not in last
    for name in DEEP_LEARNING:
        assert name.startswith("/aws/service/deeplearning/ami/x86_64/")
        assert name.endswith("-amazon-linux-2023/latest/ami-id")
