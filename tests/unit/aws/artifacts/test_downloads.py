"""A download trusts the system's authorities, and boto3's where Python finds none."""

import ssl
from pathlib import Path

import pytest

from spotelastic.aws.artifacts import downloads


def without(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As the Python of python.org is on a Mac."""
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "cert.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(folder / "certs"))


def test_where_python_finds_no_authorities_those_of_boto3_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, tmp_path)
    assert ssl.create_default_context().cert_store_stats()["x509_ca"] == 0
    (tmp_path / "certs").mkdir()
    context = ssl.create_default_context(cafile=downloads.authorities())
    assert context.cert_store_stats()["x509_ca"] > 50


def test_authorities_of_the_user_are_trusted_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, tmp_path)
    (tmp_path / "cert.pem").write_text("of a company's proxy")
    assert downloads.authorities() is None
    (tmp_path / "cert.pem").unlink()
    (tmp_path / "certs").mkdir()
    (tmp_path / "certs/0a1b2c3d.0").write_text("of a company's proxy")
    assert downloads.authorities() is None
