"""Values as they lie in the store: readable while they are small, compressed when they are not."""

import msgspec
import pytest

from spotelastic.model.round import Member, Round
from spotelastic.store.codec import LARGE, decode, encode


def round_of(nodes: int) -> Round:
    members = tuple(
        Member(f"node{i}", f"{i:032x}", i, f"10.0.0.{i % 250}", "zone", 8) for i in range(nodes)
    )
    return Round(1, "one", "proposed", members, "start", "x")


def test_a_small_value_is_plain_json() -> None:
    assert encode(round_of(2)).startswith(b'{"number":1,')
    assert decode(encode(round_of(2)), Round) == round_of(2)


def test_a_round_of_a_thousand_nodes_is_a_fraction_of_its_json() -> None:
    large = round_of(1000)
    plain = msgspec.json.encode(large)
    assert len(plain) > LARGE and len(encode(large)) < len(plain) / 3
    assert decode(encode(large), Round) == large == decode(plain, Round)


@pytest.mark.parametrize("broken", [encode(round_of(1000))[:-10], b"x", b"{", b'{"number": "one"}'])
def test_what_is_broken_is_said_to_be(broken: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(broken, Round)
