"""The configuration that one controller is started with."""

from dataclasses import dataclass

from spotelastic.controller.model.observation import ControllerPolicy
from spotelastic.model.job import JobSpec
from spotelastic.store.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """One control node's part of a cluster."""

    spec: JobSpec
    bucket: str
    region: str
    instance: str
    address: str
    tls: TlsFiles | None = None
    """Of the etcd members."""
    policy: ControllerPolicy = ControllerPolicy()
    account: str = ""
    """Its number; by default AWS is asked."""
