"""Disks that no stack knows, when their cluster goes."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.aws.fake_services import Answer, Pages, fake_aws, refusal

from spotelastic.aws.base.clients import Rejected
from spotelastic.aws.node.etcd_identity import delete_disks


class Disks:
    """What is needed of EC2: each disk has a state, or goes while it is being deleted."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.asked: list[str] = []

    def get_paginator(self, _: str) -> Pages:
        return Pages(self._described)

    def _described(self, **_: Any) -> Iterator[Answer]:
        states = {"one": "deleting", "two": "in-use", "three": "available"}
        yield {"Volumes": [{"VolumeId": name, "State": state} for name, state in states.items()]}

    def delete_volume(self, VolumeId: str) -> None:
        self.asked.append(VolumeId)
        if VolumeId == "two":
            raise refusal(self.code, "DeleteVolume")


def test_one_that_goes_with_its_instance_holds_up_nothing() -> None:
    disks = Disks("InvalidVolume.NotFound")
    delete_disks(fake_aws(ec2=disks), "demo")
    assert disks.asked == ["two", "three"]
    with pytest.raises(Rejected):
        delete_disks(fake_aws(ec2=Disks("VolumeInUse")), "demo")
