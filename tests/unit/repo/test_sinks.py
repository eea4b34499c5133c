"""What tests of watches wait for."""

from support.store.watch_sinks import Recorder

from spotelastic.store.port import Change, StoredValue


def put(key: str, data: bytes, revision: int) -> Change:
    return Change(key, StoredValue(key, data, 2, revision), revision)


def test_a_put_that_was_repeated_is_one_change() -> None:
    """On a busy machine etcd answers late; a test that counts changes would wait for ever."""
    seen = Recorder()
    first, other, second = put("a", b"1", 2), put("b", b"1", 3), put("a", b"2", 5)
    gone, again = Change("a", None, 7), put("a", b"2", 8)
    seen([first, other, put("a", b"1", 4), second, put("a", b"2", 6), gone, again])
    assert seen.changes == [first, other, second, gone, again]
    assert seen.told == [("a", b"1"), ("b", b"1"), ("a", b"2"), ("a", None), ("a", b"2")]
    assert seen.state()["a"].modified == 8
