"""Makes certificates for etcd members and clients on loopback, signed by a test authority."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from spotelastic.store.tls import TlsFiles

DAY = datetime.timedelta(days=1)


def certificates(folder: Path, *, serves: bool = True) -> TlsFiles:
    """A new authority, and a certificate of its for any loopback host, as member and as client;
    as client only, where it does not serve.

    Files that are there already are replaced.
    """
    folder.mkdir(exist_ok=True)
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _named("test authority")
    root = _builder(authority, authority, authority_key.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    hosts: list[x509.GeneralName] = [x509.DNSName("localhost")]
    hosts += [x509.IPAddress(ipaddress.ip_address(f"127.0.0.{n}")) for n in (1, 2, 3)]
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if serves:
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    leaf = (
        _builder(_named("member"), authority, key.public_key())
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    )
    pem = serialization.Encoding.PEM
    files = TlsFiles(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    assert files.cacert is not None and files.cert is not None and files.key is not None
    files.cacert.write_bytes(root.sign(authority_key, hashes.SHA256()).public_bytes(pem))
    files.cert.write_bytes(leaf.sign(authority_key, hashes.SHA256()).public_bytes(pem))
    files.key.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
    )
