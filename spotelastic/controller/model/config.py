"""The configuration that one controller is started with."""

from dataclasses import dataclass

from spotelastic.controller.model.observation import ControllerPolicy
from spotelastic.model.job import JobSpec
from spotelastic.store.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """The part of a cluster that one control node has."""

    spec: JobSpec
    bucket: str
    region: str
    instance: str
    address: str
    tls: TlsFiles | None = None
    """Files with which the controller connects to the etcd members."""
    policy: ControllerPolicy = ControllerPolicy()
    account: str = ""
    """AWS account number; by default AWS is asked for it."""
