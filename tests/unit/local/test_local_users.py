"""What ends with a command that has used the local cloud."""

from collections.abc import Sequence

import pytest

from spotelastic.local.users import Ended, parting


@pytest.mark.parametrize(
    ("name", "others", "clusters", "goes", "ended"),
    [
        ("", [], [], False, "cloud"),  # a plan, say
        ("", [], ["b"], False, "nothing"),
        ("", [""], [], False, "nothing"),  # the other one is about to make a cluster
        ("a", [], ["a"], True, "cloud"),
        ("a", [], [], True, "cloud"),
        ("a", ["a"], ["a"], True, "cloud"),  # taken down while another command shows it
        ("a", [""], ["a"], True, "cluster"),
        ("a", ["b"], ["a"], True, "cluster"),  # which has not made b yet
        ("a", [], ["a", "b"], True, "cluster"),
        ("a", [], ["a"], False, "nothing"),
        ("a", ["a"], ["a"], False, "nothing"),
        ("a", ["a"], [], False, "nothing"),
    ],
)
def test_nothing_ends_that_another_command_or_cluster_needs(
    name: str, others: Sequence[str], clusters: Sequence[str], goes: bool, ended: Ended
) -> None:
    assert parting(name, others, clusters, goes=goes, may_end=True) == ended
    kept = "cluster" if goes else "nothing"
    assert parting(name, others, clusters, goes=goes, may_end=False) == kept
