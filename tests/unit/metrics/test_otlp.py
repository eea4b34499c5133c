"""Metrics by OTLP, to a receiver on loopback that reads them as OpenTelemetry does."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from support.answering import silent
from support.http_proxy import serving as served
from support.patience import PATIENT
from support.ports import held_ports

from spotelastic.metrics import controller, node, otlp
from spotelastic.metrics.catalogue import Sample
from spotelastic.metrics.controller import CALLS, LEADS, ControllerFacts
from spotelastic.metrics.otlp import RecentSamples, is_wanted, sending

HEADER = "api-key=s3cret"
Points = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples() -> list[tuple[str, list[Sample]]]:
    facts = ControllerFacts(True, {("ec2", "ok"): 7})
    return [("demo", list(controller.samples(facts)))]


@contextmanager
def receiver() -> Iterator[tuple[str, list[tuple[str, Message, Points]], threading.Event]]:
    """Its address, what it has got, and whether it has got anything."""
    got: list[tuple[str, Message, Points]] = []
    any_came = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, self.headers, points(body)))
            any_came.set()
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with served(Handler) as server:
        yield f"http://127.0.0.1:{server.server_port}", got, any_came


def points(body: bytes) -> Points:
    request = ExportMetricsServiceRequest.FromString(body)
    return {
        (metric.name, tuple(sorted((a.key, a.value.string_value) for a in point.attributes))): (
            point.as_double
        )
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in (*metric.sum.data_points, *metric.gauge.data_points)
    }


def test_samples_come_with_their_labels_and_headers() -> None:
    with receiver() as (url, got, any_came):
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_EXPORTER_OTLP_HEADERS": HEADER,
            "OTEL_METRIC_EXPORT_INTERVAL": "20",
        }
        with sending(samples, variables, "i-control"):
            assert any_came.wait(PATIENT)
    path, headers, found = got[0]
    assert (path, headers["api-key"]) == ("/v1/metrics", "s3cret")
    assert found["spotelastic_controller_leads", (("cluster", "demo"),)] == 1.0
    labels = (("cluster", "demo"), ("outcome", "ok"), ("service", "ec2"))
    assert found["spotelastic_cloud_calls", labels] == 7.0


def test_what_is_so_at_the_end_is_sent_although_none_was_due() -> None:
    with receiver() as (url, got, _):
        with sending(samples, {"OTEL_EXPORTER_OTLP_ENDPOINT": url}, "i-control"):
            pass
        assert len(got) == 1


def test_an_endpoint_that_is_gone_or_hangs_holds_up_no_end() -> None:
    with held_ports(1) as (port,), silent() as hanging:
        for url in (f"http://127.0.0.1:{port}", hanging):
            variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
            told: list[str] = []
            with sending(samples, variables, "i-control", told.append, 0.2):
                pass
            assert told == []


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://h"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_METRICS_EXPORTER": "none"}, False),
    ],
)
def test_nothing_is_sent_unless_an_endpoint_is_named(
    variables: dict[str, str], wanted: bool
) -> None:
    assert is_wanted(variables) == wanted


def test_another_protocol_is_one_line() -> None:
    told: list[str] = []
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with sending(samples, variables, "i", told.append):
        pass
    (line,) = told
    assert "OTEL_EXPORTER_OTLP_PROTOCOL grpc: expected http/protobuf" in line


def test_a_missing_extra_is_one_line_and_the_process_goes_on() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from spotelastic.metrics.serving import serving\n"
        "with serving(None, lambda: [], {'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://h'}, 'i'):\n"
        "    print('goes on')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "goes on\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("OTEL_EXPORTER_OTLP_ENDPOINT is set, and no metrics are sent")
    assert "pip install 'spotelastic[otlp]'" in line


def test_the_samples_of_one_export_are_read_once() -> None:
    now, reads = [0.0], [0]

    def read() -> list[tuple[str, list[Sample]]]:
        reads[0] += 1
        return samples()

    recent = RecentSamples(read, lambda: now[0])
    assert recent.of(LEADS) and recent.of(CALLS) and not recent.of(node.STEP)
    assert reads == [1]
    now[0] += otlp.FRESH
    assert recent.of(LEADS)
    assert reads == [2]
