"""The cluster's own certificates: an authority, and what it signs for control and worker nodes.

Each is a SecureString parameter that one role may read (`names.py`, the template's policies):

    authority         its key and certificate     whoever runs `up`; no node
    control/<member>  a member of etcd            control nodes
    worker/etcd       a client of etcd, and a     worker nodes
                      checkpoint daemon among its peers

`ensure` is what `up` calls, every time: it makes what is missing, and renews what has lived for
half of its time. The authority stays what it is: etcd reads whom it trusts only when it starts, so
that another one means another cluster. `cryptography` is imported only there; nodes just read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from spotelastic.aws.base.clients import Aws, Rejected, calling
from spotelastic.aws.base.identity import CLUSTER
from spotelastic.aws.base.names import Names
from spotelastic.errors import EnvironmentFailure
from spotelastic.model.validity import Validity

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

MEMBER_NAME = "spotelastic etcd member"
"""The common name by which members know each other: what workers have does not make a member."""
WORKER_NAME = "spotelastic worker"
"""Likewise of workers, whose checkpoint daemons send each other snapshots."""
AUTHORITY_LIFE = timedelta(days=3650)
LIFE = timedelta(days=365)
_SKEW = timedelta(days=1)
"""Certificates are valid from before they are made, because clocks differ."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM texts: who signed it, the certificate itself, and its private key."""

    authority: str
    certificate: str
    key: str

    def write(self, folder: Path) -> tuple[Path, Path, Path]:
        """As files: authority, certificate, key. What they say already is not written again."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        texts = {"ca.pem": self.authority, "key.pem": self.key, "cert.pem": self.certificate}
        for name, text in texts.items():
            path = folder / name
            if path.exists() and path.read_text() == text:
                continue
            # Replaced as a whole: etcd reads them anew at every handshake.
            beside = folder / f".{name}"
            beside.touch(mode=0o600)
            beside.write_text(text)
            beside.replace(path)
        return folder / "ca.pem", folder / "cert.pem", folder / "key.pem"


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a certificate is for. `address` is empty where that is many: by an address it is called
    only if the certificate has it."""

    name: str
    address: str = ""


def ensure(aws: Aws, its: Names, addresses: Mapping[str, str], now: datetime) -> Validity:
    """Makes and renews the cluster's certificates; `addresses` has each member's.

    Returns until when they are good. Raises `EnvironmentFailure` when the authority has ended.
    """
    wanted = {
        its.member_certificate(member): Subject(MEMBER_NAME, address)
        for member, address in addresses.items()
    } | {its.worker_certificate: Subject(WORKER_NAME)}
    authority = _read(aws, its.authority)
    if authority is None:
        authority = make_authority(its.cluster, now)
        _store(aws, its, its.authority, authority)
    if end(authority) <= now.timestamp():
        ended = Validity(authority=end(authority))
        raise EnvironmentFailure(ended.warning(its.cluster, now.timestamp()))
    ends = list[float]()
    for parameter, subject in wanted.items():
        found = _read(aws, parameter)
        if found is None or not fits(found, subject, authority, now):
            found = issue(authority, subject, now)
            _store(aws, its, parameter, found)
        ends.append(end(found))
    return Validity(min(ends), end(authority))


def fetch(aws: Aws, parameter: str) -> Certificate:
    """What `up` stored there. Raises `EnvironmentFailure` where there is nothing."""
    found = _read(aws, parameter)
    if found is None:
        raise EnvironmentFailure(
            f"there is no certificate {parameter}: run `spotelastic up` again to have one made"
        )
    return found


# -- pure ----------------------------------------------------------------------------------------


def make_authority(cluster: str, now: datetime) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"spotelastic {cluster}")
    builder = (
        _builder(now, AUTHORITY_LIFE)
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    certificate = _signed(builder, key)
    return Certificate(certificate, certificate, _pem(key))


def issue(authority: Certificate, subject: Subject, now: datetime) -> Certificate:
    """A certificate for `subject`, to call others with and to answer by."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    signer = load_pem_private_key(authority.key.encode(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    life = min(LIFE, _loaded(authority).not_valid_after_utc - now)
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    builder = (
        _builder(now, life)
        .subject_name(_name(subject.name))
        .issuer_name(_loaded(authority).subject)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if subject.address:
        host = x509.IPAddress(ip_address(subject.address))
        builder = builder.add_extension(x509.SubjectAlternativeName([host]), critical=False)
    return Certificate(authority.certificate, _signed(builder, signer), _pem(key))


def fits(found: Certificate, subject: Subject, authority: Certificate, now: datetime) -> bool:
    """Whether it is the authority's, for this subject, and has half of its time before it."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    if found.authority != authority.certificate or _is_old(found, now):
        return False
    certificate = _loaded(found)
    usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    if ExtendedKeyUsageOID.SERVER_AUTH not in usages:
        return False  # one of a worker, of before its daemon answered by it
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        hosts = [str(host) for host in names.value.get_values_for_type(x509.IPAddress)]
    except x509.ExtensionNotFound:
        hosts = []
    return hosts == ([subject.address] if subject.address else [])


def end(found: Certificate) -> float:
    """When it ends, in seconds: none is good for longer than who signed it."""
    return _loaded(found).not_valid_after_utc.timestamp()


def _is_old(found: Certificate, now: datetime) -> bool:
    certificate = _loaded(found)
    made, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now > made + (ends - made) / 2


def _builder(now: datetime, life: timedelta) -> "x509.CertificateBuilder":
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - _SKEW)
        .not_valid_after(now.astimezone(UTC) + life)
    )


def _usage(*, signs: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> "x509.Name":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _signed(builder: "x509.CertificateBuilder", signer: "EllipticCurvePrivateKey") -> str:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding

    return builder.sign(signer, SHA256()).public_bytes(Encoding.PEM).decode()


def _pem(key: "EllipticCurvePrivateKey") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _loaded(found: Certificate) -> "x509.Certificate":
    from cryptography import x509

    return x509.load_pem_x509_certificate(found.certificate.encode())


# -- the parameters ------------------------------------------------------------------------------


def _read(aws: Aws, parameter: str) -> Certificate | None:
    try:
        with calling(f"read the certificate {parameter}"):
            answer = aws.ssm.get_parameter(Name=parameter, WithDecryption=True)
    except Rejected as error:
        if error.code == "ParameterNotFound":
            return None
        raise
    return msgspec.json.decode(answer["Parameter"]["Value"], type=Certificate)


def _store(aws: Aws, its: Names, parameter: str, made: Certificate) -> None:
    value: dict[str, Any] = {
        "Name": parameter,
        "Value": msgspec.json.encode(made).decode(),
        "Type": "SecureString",
    }
    tags = [{"Key": CLUSTER, "Value": its.cluster}]
    with calling(f"store the certificate {parameter}"):
        try:
            aws.ssm.put_parameter(**value, Tags=tags)
        except aws.ssm.exceptions.ParameterAlreadyExists:
            aws.ssm.put_parameter(**value, Overwrite=True)  # which AWS does not take with tags
