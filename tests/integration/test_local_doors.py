"""Who is let into the local cloud: its owner, and whom the cloud has given a key; nobody else."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import botocore.auth
import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.clusters.local_cloud import Laptop, running_cloud, until
from support.draws import drawn

from spotelastic.clock import wall
from spotelastic.local.base import processes
from spotelastic.local.cloud import ADMINISTRATOR, CloudInfo

ALLOW_ALL = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}],
}

ANOTHER = ["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/env", "python3"]
OTHERS = pytest.mark.skipif(os.getuid() != 0, reason="another user is needed, which root can be")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def info(home: Path) -> Iterator[CloudInfo]:
    with running_cloud(home) as info:
        laptop = Laptop(info)
        s3 = laptop.client("s3")
        s3.create_bucket(Bucket="models")
        s3.put_object(Bucket="models", Key="a b/job.json", Body=b"{}")
        laptop.client("ssm").put_parameter(Name="/x/authority", Value="key", Type="SecureString")
        yield info


@dataclass(frozen=True)
class Sent:
    """A request as it goes over the wire."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def to(self, info: CloudInfo) -> tuple[int, dict[str, str], bytes]:
        address = urlsplit(info.endpoint)
        connection = HTTPConnection(address.hostname or "", address.port, timeout=30)
        connection.request(self.method, self.path, self.body, dict(self.headers))
        answer = connection.getresponse()
        told = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        connection.close()
        return told

    def but(self, **headers: str) -> "Sent":
        changed = {name.replace("_", "-"): value for name, value in headers.items()}
        return replace(self, headers=tuple({**dict(self.headers), **changed}.items()))


LIST = Sent("GET", "/models?list-type=2&prefix=a%20b%2F")
READ = Sent("GET", "/models/a%20b/job.json")
WRITE = Sent("PUT", "/models/a%20b/job.json", body=b'{"setup": "id"}')
PARAMETER = Sent(
    "POST",
    "/",
    (("X-Amz-Target", "AmazonSSM.GetParameter"), ("Content-Type", "application/x-amz-json-1.1")),
    b'{"Name": "/x/authority", "WithDecryption": true}',
)
FAULT = Sent("POST", "/_spotelastic/calls", body=b"{}")
MOTO = Sent("POST", "/moto-api/config", (("Content-Type", "application/json"),), b"{}")
SERVICES = {LIST: "s3", READ: "s3", WRITE: "s3", PARAMETER: "ssm", FAULT: "spotelastic", MOTO: "s3"}


def signed(
    sent: Sent, info: CloudInfo, key: str = ADMINISTRATOR, secret: str = "", token: str = ""
) -> Sent:
    """The request with the signature of an access key, by default the administrator's."""
    service = SERVICES[sent]
    request = AWSRequest(sent.method, info.endpoint + sent.path, dict(sent.headers), sent.body)
    kind = S3SigV4Auth if service == "s3" else SigV4Auth
    credentials = Credentials(key, secret or info.secret, token or None)
    kind(credentials, service, info.region).add_auth(request)
    return replace(sent, headers=tuple(request.headers.items()))


def presigned(info: CloudInfo, lasts: int = 3600) -> str:
    """The path of a URL of the object that was signed now."""
    request = AWSRequest(READ.method, info.endpoint + READ.path)
    credentials = Credentials(ADMINISTRATOR, info.secret)
    S3SigV4QueryAuth(credentials, "s3", info.region, expires=lasts).add_auth(request)
    return str(request.url).removeprefix(info.endpoint)


@contextmanager
def at(moment: float) -> Iterator[None]:
    """What is signed in the block is signed at another time."""
    then = datetime.fromtimestamp(moment, UTC)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.auth, "get_current_datetime", lambda *_, **__: then)
        yield


@pytest.mark.parametrize("sent", SERVICES, ids=lambda sent: f"{sent.method} {sent.path}")
def test_only_a_right_signature_is_let_in(info: CloudInfo, sent: Sent) -> None:
    right = signed(sent, info)
    assert right.to(info)[0] == (201 if sent is MOTO else 200)
    made_up = "Credential=x/20261129/us-east-1/s3/aws4_request"
    for wrong in (
        sent,
        sent.but(Authorization="x"),
        sent.but(Authorization=f"AWS4-HMAC-SHA256 {made_up}, SignedHeaders=host, Signature=x"),
        signed(sent, info, secret="local-cloud"),
        signed(sent, info, key="AKIAIOSFODNN7EXAMPLE"),
        right.but(Origin="https://evil.example"),
        right.but(Origin=info.endpoint),
        right.but(Host="evil.example"),
    ):
        status, headers, body = wrong.to(info)
        assert status in (400, 401, 403), wrong
        assert "access-control-allow-origin" not in headers
        assert b"authority" not in body


def test_a_browser_is_not_told_that_it_may_ask(info: CloudInfo) -> None:
    asks = Sent(
        "OPTIONS",
        READ.path,
        (("Origin", "https://evil.example"), ("Access-Control-Request-Method", "PUT")),
    )
    status, headers, _ = asks.to(info)
    assert status == 403
    assert not [name for name in headers if name.startswith("access-control")]


@settings(
    max_examples=drawn(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_nothing_of_a_signed_request_can_be_changed(info: CloudInfo, data: st.DataObject) -> None:
    """Neither where it goes nor what it says. (Bodies of S3 are not compared with their hash.)"""
    sent = data.draw(st.sampled_from([LIST, READ, PARAMETER, FAULT]))
    right = signed(sent, info)
    whole = {name: value for name, value in right.headers if name != "Content-Length"}
    part = data.draw(st.sampled_from(["method", "path", "body", *whole]))
    if part == "method":
        changed = replace(right, method=data.draw(st.sampled_from(["HEAD", "DELETE", "PATCH"])))
    elif part == "path":
        at = data.draw(st.integers(1, len(right.path)))
        letter = data.draw(st.sampled_from("ab01"))
        path = right.path[:at] + letter + right.path[at + data.draw(st.integers(0, 1)) :]
        changed = replace(right, path=path)
    elif part == "body":
        changed = replace(right, body=right.body + b" ")
        if SERVICES[sent] == "s3":
            return
    else:
        at = data.draw(st.integers(0, len(whole[part]) - 1))
        letter = data.draw(st.sampled_from("ab01"))
        value = whole[part][:at] + letter + whole[part][at + 1 :]
        changed = right.but(**{part: value})
    if changed == right:
        return
    signed_headers = whole["Authorization"].partition("SignedHeaders=")[2].partition(",")[0]
    if part.lower() in signed_headers.split(";") or part in ("method", "path", "body"):
        assert changed.to(info)[0] in (400, 401, 403), changed


def test_a_url_that_was_signed_serves_for_its_object_alone(info: CloudInfo) -> None:
    path = presigned(info)
    assert Sent("GET", path).to(info)[0] == 200
    assert Sent("GET", path.replace("job.json", "job2.json")).to(info)[0] == 403
    assert Sent("PUT", path, body=b"x").to(info)[0] == 403
    assert Sent("GET", path.replace("X-Amz-Expires=3600", "X-Amz-Expires=36000")).to(info)[0] == 403


def test_a_role_may_call_what_it_may_and_cause_no_fault(info: CloudInfo) -> None:
    laptop = Laptop(info)
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    iam, sts = laptop.client("iam"), laptop.client("sts")
    arn = iam.create_role(RoleName="r", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    iam.put_role_policy(RoleName="r", PolicyName="p", PolicyDocument=json.dumps(ALLOW_ALL))
    given = sts.assume_role(RoleArn=arn, RoleSessionName="session")["Credentials"]
    key, secret = given["AccessKeyId"], given["SecretAccessKey"]
    assert signed(READ, info, key, secret, given["SessionToken"]).to(info)[0] == 200
    assert signed(READ, info, key, secret).to(info)[0] == 403
    assert signed(READ, info, key, info.secret, given["SessionToken"]).to(info)[0] == 403
    for own in (FAULT, MOTO):
        assert signed(own, info, key, secret, given["SessionToken"]).to(info)[0] in (400, 403)
    iam.create_user(UserName="u")
    made = iam.create_access_key(UserName="u")["AccessKey"]
    iam.put_user_policy(UserName="u", PolicyName="p", PolicyDocument=json.dumps(ALLOW_ALL))
    assert signed(READ, info, made["AccessKeyId"], made["SecretAccessKey"]).to(info)[0] == 200
    assert signed(READ, info, made["AccessKeyId"], secret).to(info)[0] == 403


def test_others_read_no_file_of_it(home: Path, info: CloudInfo) -> None:
    open_ones = [
        path
        for base in (home / "local.json", home / "s3", Path(info.folder))
        for path in (base, *base.rglob("*"))
        if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    assert not open_ones


def test_what_is_no_request_is_refused(info: CloudInfo) -> None:
    """Before it has proved anything: nothing is read without an end, and nothing breaks."""
    for length in ("abc", "-1", "-5", "9" * 5000, "²".encode().decode("latin-1")):
        wrong = signed(PARAMETER, info, secret="x").but(Content_Length=length)
        assert wrong.to(info)[0] == 400, length
    for signature in ("%C3%A9", "x", ""):
        path = presigned(info).partition("X-Amz-Signature=")[0] + f"X-Amz-Signature={signature}"
        assert Sent("GET", path).to(info)[0] == 403, signature


def test_what_was_signed_long_ago_is_refused(info: CloudInfo) -> None:
    with at(wall() - 600):
        slow = signed(READ, info)
    with at(wall() - 1200):
        old, lasting = signed(READ, info), presigned(info)
        short = presigned(info, 600)
    with at(wall() + 1200):
        early = signed(READ, info)
    assert [sent.to(info)[0] for sent in (slow, old, early)] == [200, 403, 403]
    assert [Sent("GET", path).to(info)[0] for path in (lasting, short)] == [200, 403]


@OTHERS
def test_another_user_of_the_machine_is_not_even_read(info: CloudInfo) -> None:
    right = signed(READ, info)
    ask = (
        "import http.client, json, sys\n"
        "connection = http.client.HTTPConnection(sys.argv[1], timeout=30)\n"
        "try:\n"
        "    connection.request('GET', sys.argv[2], headers=dict(json.loads(sys.argv[3])))\n"
        "    print(connection.getresponse().status)\n"
        "except (ConnectionError, http.client.HTTPException):\n"
        "    print('closed')\n"
    )
    where = [urlsplit(info.endpoint).netloc, right.path, json.dumps(right.headers)]
    for whose, told in (([sys.executable], "200"), (ANOTHER, "closed")):
        command = [*whose, "-I", "-c", ask, *where]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == told, done.stderr


@OTHERS
def test_the_metadata_of_an_instance_are_for_its_own_user(info: CloudInfo) -> None:
    laptop = Laptop(info)
    laptop.make_network()
    made = laptop.ec2.run_instances(
        ImageId="ami-12345678", MinCount=1, MaxCount=1, SubnetId=laptop.subnets[0]
    )["Instances"][0]
    ask = (
        "import socket, sys\n"
        "with socket.create_connection((sys.argv[1], int(sys.argv[2])), 30) as s:\n"
        "    s.sendall(b'PUT /latest/api/token HTTP/1.1\\r\\nHost: x\\r\\n'\n"
        "              b'X-aws-ec2-metadata-token-ttl-seconds: 60\\r\\n\\r\\n')\n"
        "    try:\n"
        "        print(s.recv(100).decode())\n"
        "    except ConnectionResetError:\n"
        "        pass\n"
    )
    where = [made["PrivateIpAddress"], str(info.imds_port)]
    command = [sys.executable, "-I", "-c", ask, *where]
    ours = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "200 OK" in ours.stdout
    theirs = [*ANOTHER, "-I", "-c", ask, *where]
    other = subprocess.run(theirs, capture_output=True, text=True, check=False)
    assert (other.returncode, other.stdout.strip()) == (0, ""), other.stderr
    laptop.ec2.terminate_instances(InstanceIds=[made["InstanceId"]])
    until(lambda: not processes.marked(info.id, made["InstanceId"]))
