"""The metadata client against a real HTTP server that behaves as IMDSv2 does."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from threading import Event, Thread

import pytest
from support.local_cloud import until
from support.patience import PATIENT

from spotelastic.agent.notices import NoticePoller
from spotelastic.aws.base.identity import CLUSTER, from_imds
from spotelastic.aws.base.imds import Imds
from spotelastic.aws.provider.notices import ImdsNotices
from spotelastic.errors import EnvironmentFailure, Unavailable
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
            return self.answer(200, f"token-{state.tokens}")

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
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

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
    assert Imds(service.url).get("spot/instance-action") is None


def test_the_interruption_time_is_epoch_seconds(service: Service) -> None:
    service.documents[META + "spot/instance-action"] = (
        '{"action": "terminate", "time": "2017-09-18T08:22:00Z"}'
    )
    assert Imds(service.url).interruption() == 1505722920.0


def test_a_rebalance_recommendation_has_its_notice_time(service: Service) -> None:
    service.documents[META + "events/recommendations/rebalance"] = (
        '{"noticeTime": "2017-09-18T08:22:00Z"}'
    )
    assert Imds(service.url).rebalance() == 1505722920.0


def test_one_token_serves_many_reads_and_an_expired_one_is_replaced(service: Service) -> None:
    service.documents[META + "autoscaling/target-lifecycle-state"] = "InService"
    imds = Imds(service.url)
    assert [imds.lifecycle_state() for _ in range(3)] == ["InService"] * 3
    assert service.tokens == 1
    service.tokens += 1  # as if the service had forgotten the token
    assert imds.lifecycle_state() == "InService"
    assert service.tokens == 3


@pytest.mark.parametrize("body", ["not json", "[]", "{}", '{"time": 3}', '{"time": "soon"}'])
def test_a_malformed_document_is_trouble_not_a_notice(service: Service, body: str) -> None:
    service.documents[META + "spot/instance-action"] = body
    with pytest.raises(Unavailable):
        Imds(service.url).interruption()


def test_an_overloaded_service_is_unavailable(service: Service) -> None:
    service.status = 503
    with pytest.raises(Unavailable, match="503"):
        Imds(service.url).get("local-ipv4")


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
