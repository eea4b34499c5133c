"""Log lines leave in batches that CloudWatch takes, in order, and survive its refusals."""

from threading import Event
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.fake_aws import fake_aws
from support.patience import PATIENT

from spotelastic.aws.node.log_shipper import BATCH_BYTES, BATCH_LINES, OVERHEAD, LogShipper, batches
from spotelastic.errors import Unavailable


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 200_000).map(lambda n: "x" * n))))
def test_batches_keep_order_and_stay_within_the_limits(lines: list[tuple[int, str]]) -> None:
    divided = batches(lines)
    assert [line for batch in divided for line in batch] == lines
    for batch in divided:
        assert 0 < len(batch) <= BATCH_LINES
        assert sum(len(text) + OVERHEAD for _, text in batch) <= BATCH_BYTES


class Service:
    """CloudWatch Logs that does not answer the first `failures` times."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.streams: dict[str, list[str]] = {}
        self.failed = Event()

    def create_log_stream(self, *, logGroupName: str, logStreamName: str) -> None:
        assert logStreamName not in self.streams
        self.streams[logStreamName] = []

    def put_log_events(
        self, *, logGroupName: str, logStreamName: str, logEvents: list[dict[str, Any]]
    ) -> None:
        if self.failures:
            self.failures -= 1
            self.failed.set()
            raise Unavailable("busy")
        self.streams[logStreamName] += [event["message"] for event in logEvents]


def test_lines_arrive_by_stream_and_in_order() -> None:
    service = Service()
    shipper = LogShipper(fake_aws(logs=service), "group")
    for number in range(5):
        shipper.write("n/rank-0", f"line {number}")
    shipper.write("n/rank-1", "other")
    shipper.write("n/rank-1", "  ")
    shipper.close()
    assert service.streams == {
        "n/rank-0": [f"line {number}" for number in range(5)],
        "n/rank-1": ["other"],
    }


def test_what_could_not_be_sent_is_sent_later_and_first() -> None:
    service = Service(failures=1)
    shipper = LogShipper(fake_aws(logs=service), "group")
    shipper.write("n/rank-0", "before")
    assert service.failed.wait(PATIENT)
    shipper.write("n/rank-0", "after")
    shipper.close()
    assert service.streams == {"n/rank-0": ["before", "after"]}
