"""One notification to one URL: receivers that take it, refuse it, hang and are gone."""

import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.processes.patience import PATIENT, eventually
from support.processes.ports import held_ports
from support.processes.webhooks import TOKEN, webhook
from support.saving.fixed_answers import silent

from spotelastic.notifications.notification import Notification, NotificationType, SendOutcome
from spotelastic.notifications.url_receiver import UrlReceiver, without_parts

SENDING = b"spotelastic.notifications.sending"
TOLD = Notification("ended 1", "demo has failed", "ValueError: “no data”\n\nRead on.", "failure")


def test_a_webhook_gets_title_text_and_type() -> None:
    others: tuple[NotificationType, ...] = ("info", "success", "warning")
    told = [TOLD, *(replace(TOLD, type=each) for each in others)]
    with webhook() as hook:
        receiver = UrlReceiver("1-json", hook.url, PATIENT)
        assert [receiver.send(each) for each in told] == [SendOutcome()] * 4
    assert [each["type"] for each in hook.heard] == ["failure", *others]
    heard = hook.heard[0]
    assert heard["title"] == TOLD.title
    assert "no data" in heard["message"] and heard["path"] == f"/{TOKEN}"


def test_a_refusal_is_told_by_its_status_and_without_the_url() -> None:
    with webhook(500) as hook:
        outcome = UrlReceiver("1-json", hook.url, PATIENT).send(TOLD)
    assert "500" in outcome.why and not outcome.unsure
    assert TOKEN not in outcome.why


def test_nobody_there_is_told_and_may_be_tried_again() -> None:
    with held_ports(1) as (port,):
        outcome = UrlReceiver("1-json", f"json://127.0.0.1:{port}/{TOKEN}", PATIENT).send(TOLD)
    assert outcome.why and not outcome.unsure and TOKEN not in outcome.why


def test_whoever_takes_it_and_does_not_answer_may_have_it() -> None:
    with silent() as address:
        url = address.replace("http", "json") + f"/{TOKEN}"
        outcome = UrlReceiver("1-json", url, within=1.0).send(TOLD)
    assert outcome == SendOutcome("no answer within 1 s", unsure=True)


def test_whoever_answers_a_byte_at_a_time_is_left_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"json://127.0.0.1:{server.getsockname()[1]}/{TOKEN}"
        drip = (
            "import socket, sys, time\n"
            "server = socket.socket(fileno=0)\n"
            "taken, _ = server.accept()\n"
            "taken.send(b'HTTP/1.1 200 OK\\r\\n')\n"
            "while True: taken.send(b'a'); time.sleep(0.05)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", drip], stdin=server.fileno(), stderr=subprocess.DEVNULL
        ) as dripping:
            outcome = UrlReceiver("1-json", url, within=1.0).send(TOLD)
            dripping.kill()
    assert outcome.unsure


def test_no_process_shows_the_url() -> None:
    with silent() as address:
        url = address.replace("http", "json") + f"/{TOKEN}"
        code = (
            "import sys; from spotelastic.notifications.url_receiver import *\n"
            "from spotelastic.notifications.notification import Notification\n"
            "told = Notification('i', 't', 'x')\n"
            "UrlReceiver('1-json', sys.stdin.read(), 30.0).send(told)"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, text=True
        ) as sending:
            assert sending.stdin is not None
            sending.stdin.write(url)
            sending.stdin.close()
            children = Path(f"/proc/{sending.pid}/task/{sending.pid}/children")
            eventually(lambda: SENDING in shown(children.read_text().strip()))
            child = children.read_text().strip()
            line = shown(child)
            environ = (Path("/proc") / child / "environ").read_bytes()
            subprocess.run(["kill", child], check=True)
            sending.kill()
    assert TOKEN.encode() not in line + environ


def shown(pid: str) -> bytes:
    return (Path("/proc") / pid / "cmdline").read_bytes() if pid else b""


def test_a_receiver_does_not_show_its_url() -> None:
    assert TOKEN not in repr(UrlReceiver("1-json", f"json://host/{TOKEN}"))


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        (
            "discord://webhook-id/webhook%20token",
            ("webhook-id", "webhook token", "webhook%20token"),
        ),
        ("mailto://user1:passw0rd@example.com", ("passw0rd", "user1:passw0rd@example.com")),
        ("tgram://123456789:abcdefg/chat-id-1", ("123456789", "abcdefg", "chat-id-1")),
        ("json://host/path?token=s3cr3t-t0ken", ("s3cr3t-t0ken", "token=s3cr3t-t0ken")),
    ],
)
def test_no_part_of_a_url_is_left_in_what_a_service_says(
    url: str, secrets: tuple[str, ...]
) -> None:
    for secret in secrets:
        assert secret not in without_parts(url, f"no way with {secret} at {url}: 401")
        assert without_parts(url, f"{secret}: 401").endswith(": 401")
