"""The metadata client against a real HTTP server that behaves as IMDSv2 does."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters.local_cloud import until
from support.processes.patience import PATIENT

from spotelastic.agent.notices import NoticePoller
from spotelastic.aws.base.identity import CLUSTER, from_imds
from spotelastic.aws.base.imds import Imds, InstanceAction, UnusableAnswer, read_scheduled
from spotelastic.aws.base.moments import moment
from spotelastic.aws.provider.notices import ImdsNotices
from spotelastic.errors import EnvironmentFailure, Unavailable
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.notice import Notice

META = "/latest/meta-data/"
IDENTITY = """{"instanceId": "i-1", "privateIp": "127.80.0.9", "availabilityZone": "us-east-1b",
    "region": "us-east-1", "instanceType": "g5.xlarge", "accountId": "123456789012"}"""


@dataclass
class Service:
    """What the server answers; tokens are counted so that a test can expire them."""

    url: str = ""
    documents: dict[str, str] = field(default_factory=dict)
    tokens: int = 0
    status: int = 0
    """Answer everything with this status."""
    hangs: int = 0
    """So many requests are not answered before `released`."""
    answered: list[int] = field(default_factory=list)
    released: Event = field(default_factory=Event)
    token: str = ""
    """What it gives in place of a token."""
    held_back: int = 0
    """Bytes that are promised and do not come."""


@pytest.fixture
def service() -> Iterator[Service]:
    state = Service()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            if self.path != "/latest/api/token" or not self.headers.get(
                "X-aws-ec2-metadata-token-ttl-seconds"
            ):
                return self.answer(400)
            state.tokens += 1
            return self.answer(200, state.token or f"token-{state.tokens}")

        def do_GET(self) -> None:
            if state.hangs:
                state.hangs -= 1
                state.released.wait(10)
            if self.headers.get("X-aws-ec2-metadata-token") != f"token-{state.tokens}":
                return self.answer(401)
            if self.path not in state.documents:
                return self.answer(404)
            return self.answer(200, state.documents[self.path])

        def answer(self, status: int, body: str = "") -> None:
            state.answered.append(state.status or status)
            self.send_response(state.status or status)
            data = body.encode("utf-8", "surrogateescape")
            self.send_header("Content-Length", str(len(data) + state.held_back))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    state.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_document_that_is_not_there_is_none(service: Service) -> None:
    assert Imds(service.url, timeout=PATIENT).get("spot/instance-action") is None


def test_the_interruption_time_is_epoch_seconds(service: Service) -> None:
    service.documents[META + "spot/instance-action"] = (
        '{"action": "terminate", "time": "2017-09-18T08:22:00Z"}'
    )
    assert Imds(service.url, timeout=PATIENT).interruption() == InstanceAction(
        "terminate", 1505722920.0
    )


def test_a_rebalance_recommendation_has_its_notice_time(service: Service) -> None:
    service.documents[META + "events/recommendations/rebalance"] = (
        '{"noticeTime": "2017-09-18T08:22:00Z"}'
    )
    assert Imds(service.url, timeout=PATIENT).rebalance() == 1505722920.0


def test_one_token_serves_many_reads_and_an_expired_one_is_replaced(service: Service) -> None:
    service.documents[META + "autoscaling/target-lifecycle-state"] = "InService"
    imds = Imds(service.url, timeout=PATIENT)
    assert [imds.lifecycle_state() for _ in range(3)] == ["InService"] * 3
    assert service.tokens == 1
    service.tokens += 1  # as if the service had forgotten the token
    assert imds.lifecycle_state() == "InService"
    assert service.tokens == 3


@pytest.mark.parametrize("body", ["not json", "[]", "{}", '{"time": 3}', '{"time": "soon"}'])
def test_a_malformed_document_is_trouble_not_a_notice(service: Service, body: str) -> None:
    service.documents[META + "spot/instance-action"] = body
    with pytest.raises(Unavailable):
        Imds(service.url, timeout=PATIENT).interruption()


def test_an_overloaded_service_is_unavailable(service: Service) -> None:
    service.status = 503
    with pytest.raises(Unavailable, match="503"):
        Imds(service.url, timeout=PATIENT).get("local-ipv4")


def test_nobody_listening_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        Imds("http://127.0.0.1:1").get("local-ipv4")


@pytest.mark.parametrize("trouble", ["503", "401", "hangs"])
def test_a_notice_is_seen_after_any_trouble_with_the_service_and_told_once(
    service: Service, trouble: str
) -> None:
    told: SimpleQueue[Notice] = SimpleQueue()
    if trouble == "hangs":
        service.hangs = 2
    else:
        service.status = int(trouble)
    source = ImdsNotices(service.url, "i-1", timeout=0.1)
    poller = NoticePoller(source, told.put, poll=0.01, back_off=0.05)
    try:
        if trouble == "hangs":
            until(lambda: service.hangs == 0)
        else:
            until(lambda: service.answered.count(int(trouble)) > 3)
        service.documents[META + "spot/instance-action"] = (
            '{"action": "terminate", "time": "2037-09-18T08:22:00Z"}'
        )
        service.status = 0
        notice = told.get(timeout=PATIENT)
        answered = len(service.answered)
        until(lambda: len(service.answered) > answered + 3)
    finally:
        poller.close()
    assert (notice.kind, notice.node, notice.source) == ("spot_interruption", "i-1", "imds")
    assert told.empty(), "the same notice is told once"


def test_identity_comes_with_tags(service: Service) -> None:
    service.documents |= {
        "/latest/dynamic/instance-identity/document": IDENTITY,
        META + "instance-life-cycle": "spot",
        META + "tags/instance/": f"{CLUSTER}\nName",
        META + f"tags/instance/{CLUSTER}": "demo",
        META + "tags/instance/Name": "worker",
    }
    identity = from_imds(service.url)
    assert (identity.instance, identity.zone, identity.spot) == ("i-1", "us-east-1b", True)
    assert identity.address == "127.80.0.9"
    assert identity.tag(CLUSTER) == "demo"
    with pytest.raises(EnvironmentFailure, match="spotelastic:role"):
        identity.tag("spotelastic:role")


PATHS = ("spot/instance-action", "events/recommendations/rebalance", "events/maintenance/scheduled")
REBOOT = {
    "NotBefore": "21 Jan 2037 09:00:43 GMT",
    "Code": "system-reboot",
    "Description": "scheduled reboot",
    "EventId": "instance-event-0d59937288b749b32",
    "NotAfter": "21 Jan 2037 09:17:23 GMT",
    "State": "active",
}
BEGINS = 2116141243.0
"""As `REBOOT` has it."""


def maintenance(service: Service, *entries: object) -> None:
    service.documents[META + "events/maintenance/scheduled"] = json.dumps(entries)


def test_maintenance_is_announced_once_and_again_at_another_time(service: Service) -> None:
    source = ImdsNotices(
        service.url, "i-1", timeout=PATIENT, clock=lambda: 1000.0, wall=lambda: 900.0
    )
    maintenance(service)
    assert source.poll() == ()
    maintenance(service, REBOOT)
    (notice,) = source.poll()
    assert (notice.kind, notice.action, notice.id) == (
        InterruptionKind.MAINTENANCE, "system-reboot", REBOOT["EventId"],
    )  # fmt: skip
    assert notice.deadline == BEGINS + 100.0, "on the node's own clock"
    assert notice.is_announcement and not notice.called_off
    assert "will be rebooted" in notice.line and "2037-01-21 09:02 UTC" in notice.line
    assert source.poll() == ()
    maintenance(service, REBOOT | {"NotBefore": "22 Jan 2037 09:00:43 GMT"})
    (later,) = source.poll()
    assert later.deadline == BEGINS + 100.0 + 86_400.0 and later.id == notice.id


@pytest.mark.parametrize(
    "left",
    [(), (REBOOT | {"State": "canceled"},), (REBOOT | {"Description": "[Canceled] reboot"},)],
)
def test_maintenance_that_is_called_off_is_told_of(
    service: Service, left: tuple[object, ...]
) -> None:
    source = ImdsNotices(
        service.url, "i-1", timeout=PATIENT, clock=lambda: 1000.0, wall=lambda: 1000.0
    )
    maintenance(service, REBOOT)
    (notice,) = source.poll()
    maintenance(service, *left)
    (over,) = source.poll()
    assert (over.called_off, over.id, over.kind) == (True, notice.id, notice.kind)
    assert "called off" in over.line
    assert source.poll() == ()


def test_maintenance_that_has_begun_is_not_called_off(service: Service) -> None:
    now = [1000.0]
    source = ImdsNotices(
        service.url, "i-1", timeout=PATIENT, clock=lambda: now[0], wall=lambda: now[0]
    )
    maintenance(service, REBOOT)
    assert len(source.poll()) == 1
    now[0] = BEGINS + 1.0
    maintenance(service)
    assert source.poll() == ()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("instance-reboot", InterruptionKind.MAINTENANCE),
        ("system-maintenance", InterruptionKind.MAINTENANCE),
        ("instance-stop", InterruptionKind.RETIREMENT),
        ("instance-retirement", InterruptionKind.RETIREMENT),
        ("a word of tomorrow", InterruptionKind.MAINTENANCE),
    ],
)
def test_each_word_for_maintenance_has_its_kind(
    service: Service, code: str, kind: InterruptionKind
) -> None:
    maintenance(service, REBOOT | {"Code": code})
    (notice,) = ImdsNotices(service.url, "i-1", timeout=PATIENT).poll()
    assert (notice.kind, notice.action) == (kind, code)


def test_an_entry_that_cannot_be_read_hides_no_other_and_calls_nothing_off(
    service: Service,
) -> None:
    source = ImdsNotices(service.url, "i-1", timeout=PATIENT)
    maintenance(service, {"NotBefore": "soon"}, REBOOT)
    assert len(source.poll()) == 1
    maintenance(service, {"NotBefore": "soon"})
    with pytest.raises(UnusableAnswer, match="no usable NotBefore"):
        source.poll()
    maintenance(service, REBOOT)
    assert source.poll() == ()


@pytest.mark.parametrize(
    ("action", "word"), [("terminate", "terminate"), ("stop", "stop"), ("hibernate", "hibernate")]
)
def test_a_spot_notice_has_the_word_of_aws(service: Service, action: str, word: str) -> None:
    service.documents[META + "spot/instance-action"] = json.dumps(
        {"action": action, "time": "2037-09-18T08:22:00Z"}
    )
    (notice,) = ImdsNotices(service.url, "i-1", timeout=PATIENT).poll()
    assert (notice.kind, notice.action) == (InterruptionKind.SPOT_INTERRUPTION, word)


@pytest.mark.parametrize("state", ["Terminated", "Detached", "InService", "Standby", "<html>"])
def test_a_node_that_is_to_leave_its_group_is_told(service: Service, state: str) -> None:
    service.documents[META + "autoscaling/target-lifecycle-state"] = state
    notices = ImdsNotices(service.url, "i-1", timeout=PATIENT).poll()
    assert [each.kind for each in notices] == (
        [InterruptionKind.PLANNED] if state in ("Terminated", "Detached") else []
    )


ODD = {
    "html": "<html><body>502 Bad Gateway</body></html>",
    "empty": "",
    "no object": "7",
    "wrong types": '{"time": {}, "noticeTime": [], "action": 3}',
    "deep": "[" * 60_000,
    "long": "x" * 70_000,
    "no UTF-8": "\udcff",
    "a number without end": "9" * 60_000,
    "a year before all": '{"time": "0001-01-01T00:00:00+23:59", "noticeTime": "0000"}',
}


@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
def test_no_answer_hides_what_another_one_says(service: Service, body: str) -> None:
    service.documents |= {META + path: body for path in PATHS[1:]}
    service.documents[META + PATHS[0]] = '{"action": "terminate", "time": "2037-09-18T08:22:00Z"}'
    kind = InterruptionKind.SPOT_INTERRUPTION
    assert kind in {each.kind for each in ImdsNotices(service.url, "i-1", timeout=PATIENT).poll()}
    service.documents[META + PATHS[0]] = body
    maintenance(service, REBOOT)
    kind = InterruptionKind.MAINTENANCE
    assert kind in {each.kind for each in ImdsNotices(service.url, "i-1", timeout=PATIENT).poll()}


def test_an_answer_of_which_half_is_missing_is_unavailable(service: Service) -> None:
    service.documents[META + PATHS[0]] = '{"action": "terminate", "time": "2037-'
    service.held_back = 20
    with pytest.raises(Unavailable):
        Imds(service.url, timeout=0.2).interruption()


def test_a_token_that_no_header_can_carry_is_unavailable(service: Service) -> None:
    service.documents[META + PATHS[0]] = "x"

    service.token = "<html>\n\n</html>"
    with pytest.raises(Unavailable):
        Imds(service.url, timeout=PATIENT).interruption()


def test_a_poller_goes_on_after_anything_that_its_source_raises_and_says_it_once(
    said: list[str],
) -> None:
    told: SimpleQueue[Notice] = SimpleQueue()
    notice = Notice(InterruptionKind.REBALANCE, "i-1", "imds", 1.0, 1.0)
    polls: Iterator[Exception | tuple[Notice, ...]] = iter(
        [RecursionError("deep"), RecursionError("deep"), KeyError("x"), (notice,)]
    )
    over = Event()

    class Source:
        def poll(self) -> tuple[Notice, ...]:
            answer = next(polls, None)
            if answer is None:
                over.set()
                return ()
            if isinstance(answer, Exception):
                raise answer
            return answer

    poller = NoticePoller(Source(), told.put, poll=0.001, back_off=0.002)
    try:
        assert told.get(timeout=PATIENT) == notice
        assert over.wait(PATIENT)
    finally:
        poller.close()
    assert [line.rpartition(": ")[2] for line in said] == ["deep", "'x'"]


times = st.text(max_size=30) | st.sampled_from(["2037-09-18T08:22:00", "21 Jan 2037 09:00:43 GMT"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | times,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*REBOOT, "time", "action", "noticeTime"]), inner)
    ),
    max_leaves=8,
)


@given(json_values)
def test_no_entry_whatever_breaks_the_reader(entry: object) -> None:
    with suppress(UnusableAnswer):
        assert read_scheduled(json.loads(json.dumps(entry))).begins < 1e12


@given(times | json_values)
def test_no_time_whatever_breaks_the_reader(text: object) -> None:
    with suppress(ValueError):
        assert moment(text) < 1e12
