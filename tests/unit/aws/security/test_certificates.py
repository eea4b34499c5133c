"""The cluster's own certificates: what they allow, and when `up` renews them."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.aws.fake_services import fake_aws, refusal

from spotelastic.aws.base.names import Names
from spotelastic.aws.security.certificates import ensure
from spotelastic.certificates import (
    AUTHORITY_LIFE,
    LIFE,
    MEMBER_NAME,
    WORKER_NAME,
    Certificate,
    Subject,
    end,
    fits,
    issue,
    make_authority,
)
from spotelastic.errors import EnvironmentFailure
from spotelastic.model.validity import Validity

NOW = datetime(2030, 1, 1, tzinfo=UTC)
MEMBER = Subject(MEMBER_NAME, ("10.64.0.253",))
WORKER = Subject(WORKER_NAME)


@pytest.fixture(scope="module")
def authority() -> Certificate:
    return make_authority("demo", datetime.now(UTC))


def shake_hands(server: Certificate, client: Certificate, host: str, folder: Path) -> str:
    """In memory: the name that the server reads off the client's certificate."""
    ends = {}
    for purpose, side in ((ssl.Purpose.CLIENT_AUTH, server), (ssl.Purpose.SERVER_AUTH, client)):
        ca, cert, key = side.write(folder / purpose.name)
        context = ssl.create_default_context(purpose, cafile=ca)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(cert, key)
        context.check_hostname = bool(host) and purpose is ssl.Purpose.SERVER_AUTH
        ends[purpose] = context
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = ends[ssl.Purpose.SERVER_AUTH].wrap_bio(down, up, server_hostname=host or None)
    called = ends[ssl.Purpose.CLIENT_AUTH].wrap_bio(up, down, server_side=True)
    for each in (caller, called, caller, called):
        try:
            each.do_handshake()
        except ssl.SSLWantReadError:
            continue
    seen: Any = called.getpeercert()
    assert seen is not None
    ((subject,),) = seen["subject"]
    return str(subject[1])


def test_a_worker_calls_a_member_and_each_knows_the_other(
    authority: Certificate, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    member, worker = issue(authority, MEMBER, now), issue(authority, WORKER, now)
    assert shake_hands(member, worker, MEMBER.hosts[0], tmp_path) == WORKER_NAME
    assert shake_hands(member, member, MEMBER.hosts[0], tmp_path) == MEMBER_NAME
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        shake_hands(member, worker, "10.64.0.1", tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        shake_hands(worker, member, MEMBER.hosts[0], tmp_path)
    assert shake_hands(worker, worker, "", tmp_path) == WORKER_NAME


def test_a_certificate_is_renewed_after_half_of_its_time_or_for_another_address(
    authority: Certificate,
) -> None:
    found = issue(authority, MEMBER, NOW)
    assert fits(found, MEMBER, authority, NOW)
    assert fits(found, MEMBER, authority, NOW + LIFE * 0.49)
    assert not fits(found, MEMBER, authority, NOW + LIFE * 0.51)
    assert not fits(found, Subject(MEMBER_NAME, ("10.64.4.253",)), authority, NOW)
    assert not fits(found, MEMBER, make_authority("demo", NOW), NOW)
    assert fits(issue(authority, WORKER, NOW), WORKER, authority, NOW)


def test_none_is_good_for_longer_than_who_signed_it() -> None:
    authority = make_authority("demo", NOW)
    late = NOW + AUTHORITY_LIFE - LIFE / 4
    assert end(issue(authority, WORKER, NOW)) == (NOW + LIFE).timestamp()
    assert end(issue(authority, WORKER, late)) == end(authority)


class Parameters:
    """A Parameter Store; `get` and `put` as boto3 has them."""

    class exceptions:
        class ParameterAlreadyExists(Exception): ...

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def get_parameter(self, Name: str, **_: Any) -> Any:
        if Name not in self.values:
            raise refusal("ParameterNotFound", "GetParameter")
        return {"Parameter": {"Value": self.values[Name]}}

    def put_parameter(self, Name: str, Value: str, **_: Any) -> None:
        self.values[Name] = Value


def test_up_renews_certificates_for_as_long_as_the_authority_lives() -> None:
    parameters = Parameters()
    aws = fake_aws(ssm=parameters)

    def ensure_at(now: datetime) -> Validity:
        return ensure(aws, Names("demo"), {"a": "10.64.0.253"}, now)

    ends = NOW + AUTHORITY_LIFE
    assert ensure_at(NOW) == Validity((NOW + LIFE).timestamp(), ends.timestamp())
    stored = dict(parameters.values)
    assert ensure_at(NOW + LIFE * 0.4) == ensure_at(NOW)
    assert parameters.values == stored
    later = NOW + LIFE * 0.6
    assert ensure_at(later).certificates == (later + LIFE).timestamp()
    assert {name for name in stored if parameters.values[name] == stored[name]} == {
        Names("demo").authority
    }
    assert ensure_at(ends - LIFE / 4).certificates == ends.timestamp()
    with pytest.raises(EnvironmentFailure, match=r"authority .* expired on 2039-12-30: .* down d"):
        ensure_at(ends)


def test_files_are_private_and_replaced_only_by_something_else(
    authority: Certificate, tmp_path: Path
) -> None:
    found = issue(authority, WORKER, NOW)
    paths = found.write(tmp_path / "tls")
    before = [path.stat() for path in paths]
    assert {each.st_mode & 0o777 for each in before} == {0o600}
    assert found.write(tmp_path / "tls") == paths
    assert [path.stat().st_ino for path in paths] == [each.st_ino for each in before]
    renewed = issue(authority, WORKER, NOW + timedelta(days=200))
    renewed.write(tmp_path / "tls")
    assert paths[1].read_text() == renewed.certificate
    assert paths[0].stat().st_ino == before[0].st_ino
