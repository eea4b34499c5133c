"""Makes certificate authorities, and certificates that they sign.

`cryptography` is imported only for that.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

MEMBER_NAME = "spotelastic etcd member"
"""Common name by which etcd members recognize each other; a worker's certificate does not make a
member."""
WORKER_NAME = "spotelastic worker"
"""Common name of workers, whose checkpoint daemons send each other snapshots."""
AUTHORITY_LIFE = timedelta(days=3650)
LIFE = timedelta(days=365)
_SKEW = timedelta(days=1)
"""How long before its creation a certificate becomes valid, because clocks differ."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM texts: the authority's certificate, the certificate itself, and its private key."""

    authority: str
    certificate: str
    key: str

    def write(self, folder: Path) -> tuple[Path, Path, Path]:
        """Write the files and return their paths: authority, certificate, key.

        Equal ones are not rewritten.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        texts = {"ca.pem": self.authority, "key.pem": self.key, "cert.pem": self.certificate}
        for name, text in texts.items():
            path = folder / name
            if path.exists() and path.read_text() == text:
                continue
            # Replaced atomically: etcd reads them at every handshake.
            beside = folder / f".{name}"
            beside.touch(mode=0o600)
            beside.write_text(text)
            beside.replace(path)
        return folder / "ca.pem", folder / "cert.pem", folder / "key.pem"


@dataclass(frozen=True, slots=True)
class Subject:
    """The holder of a certificate.

    `hosts` are addresses and names; none if there are many holders. A holder can be called at an
    address only if the certificate contains it.
    """

    name: str
    hosts: tuple[str, ...] = ()


def make_authority(cluster: str, now: datetime) -> Certificate:
    """Return a new certificate authority for the cluster."""
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


def issue(
    authority: Certificate, subject: Subject, now: datetime, longest: timedelta = LIFE
) -> Certificate:
    """Return a certificate for `subject`, valid for both client and server."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    signer = load_pem_private_key(authority.key.encode(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    life = min(longest, _loaded(authority).not_valid_after_utc - now)
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
    if subject.hosts:
        names = x509.SubjectAlternativeName([_host(each) for each in subject.hosts])
        builder = builder.add_extension(names, critical=False)
    return Certificate(authority.certificate, _signed(builder, signer), _pem(key))


def fits(found: Certificate, subject: Subject, authority: Certificate, now: datetime) -> bool:
    """Whether the certificate is the authority's, for this subject, with half of its time left."""
    from cryptography import x509

    certificate = _loaded(found)
    made, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if found.authority != authority.certificate or now > made + (ends - made) / 2:
        return False

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        hosts = [str(host) for host in names.value.get_values_for_type(x509.IPAddress)]
    except x509.ExtensionNotFound:
        hosts = []
    return hosts == list(subject.hosts)


def end(found: Certificate) -> float:
    """Return when the certificate ends, in epoch seconds. None outlives its authority."""
    return _loaded(found).not_valid_after_utc.timestamp()


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


def _host(name: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


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
