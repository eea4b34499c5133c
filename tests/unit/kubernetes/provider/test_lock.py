"""The Lease of a control pod: whatever clocks and answers do, two never hold it at once."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from spotelastic.errors import Unavailable
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.call_errors import Conflicting
from spotelastic.kubernetes.provider.lock import FREE_AFTER, HELD_FOR, LeaseLock, LeaseSeen, is_free


class OneLease(KubeApi):
    """An API server that has one Lease, and may not answer."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.answers = True
        self.version = 0

    def get(self, kind: str, name: str) -> Any:
        self._check()
        return None if kind != "Lease" else self.lease

    def create(self, manifest: Any) -> Any:
        self._check()
        if self.lease is not None:
            raise Conflicting("it exists")
        return self._stored(manifest)

    def replace(self, manifest: Any) -> Any:
        self._check()
        assert self.lease is not None
        if manifest["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Conflicting("it has changed")
        return self._stored(manifest)

    def _stored(self, manifest: Any) -> Any:
        self.version += 1
        metadata = {**manifest["metadata"], "resourceVersion": str(self.version)}
        self.lease = {**manifest, "metadata": metadata}
        return self.lease

    def _check(self) -> None:
        if not self.answers:
            raise Unavailable("no answer")


def test_a_free_lease_is_taken_and_a_held_one_only_after_a_time_without_renewal() -> None:
    assert is_free(None, "a", 0.0)
    assert is_free(LeaseSeen("", "1", 0.0), "a", 0.0)
    assert is_free(LeaseSeen("a", "1", 0.0), "a", 0.0)
    assert not is_free(LeaseSeen("b", "1", 5.0), "a", 5.0 + FREE_AFTER - 0.1)
    assert is_free(LeaseSeen("b", "1", 5.0), "a", 5.0 + FREE_AFTER)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]),
            st.floats(0.1, 20.0),
            st.booleans(),
        ),
        max_size=60,
    ),
    st.tuples(st.floats(1.0, 1e6), st.floats(1.0, 1e6), st.floats(1.0, 1e6)),
)
def test_no_two_pods_hold_it_at_once(
    turns: list[tuple[str, float, bool]], offsets: tuple[float, float, float]
) -> None:
    now, api = [0.0], OneLease()
    shift = dict(zip("abc", offsets, strict=True))
    locks = {
        name: LeaseLock(api, "train", name, lambda name=name: now[0] + shift[name])  # type: ignore[misc]
        for name in "abc"
    }
    for name, seconds, answers in turns:
        now[0] += seconds
        api.answers = answers
        try:
            locks[name].try_to_hold()
        except Unavailable:
            pass
        holders = [
            each for each, lock in locks.items() if lock.held_until > now[0] + shift[each] + 1e-6
        ]
        assert len(holders) <= 1
    assert HELD_FOR < FREE_AFTER


def test_a_released_lease_is_free_at_once() -> None:
    api = OneLease()
    first, second = (LeaseLock(api, "train", name, lambda: 0.0) for name in ("a", "b"))
    assert first.try_to_hold() and not second.try_to_hold()
    first.release()
    assert second.try_to_hold() and not first.try_to_hold()
