"""Which nodes may train together."""

from dataclasses import replace

from spotelastic.model.node import Fingerprint

ITS = Fingerprint("3.13.1", "2.13", "13.0", kernels="NVIDIA A10G / AVX2 / cf30153c4c")


def test_nodes_of_an_exact_run_have_the_same_kernels() -> None:
    other = replace(ITS, kernels="NVIDIA L4 / AVX2 / cf30153c4c")
    assert ITS.difference(replace(ITS)) is None
    assert ITS.difference(other) == (
        "kernels (--exact) of NVIDIA A10G / AVX2 / cf30153c4c here, "
        "NVIDIA L4 / AVX2 / cf30153c4c there"
    )
    assert ITS.difference(replace(other, kernels="")) is None, "it is not known, or the run is not"
