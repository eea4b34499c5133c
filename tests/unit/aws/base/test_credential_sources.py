"""Credentials that a helper or a file gives: where that is wrong, it is told in one line."""

from pathlib import Path

import pytest

from spotelastic.aws.base.clients import Aws, has_credentials
from spotelastic.errors import EnvironmentFailure

ROLE = "role_arn = arn:aws:iam::123456789012:role/x"
CONTAINER = "AWS_CONTAINER_CREDENTIALS_FULL_URI"


@pytest.fixture(autouse=True)
def without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("credential_process = /none/helper", "of custom-process: .*/none/helper"),
        ("credential_process = /bin/echo hello", "of custom-process: Expecting value"),
        ("credential_process = /bin/echo 'hello", "of custom-process: No closing quotation"),
        (f"{ROLE}\nweb_identity_token_file = /none/token", "credentials: .*/none/token"),
    ],
)
def test_what_is_wrong_in_a_profile_is_one_line(
    lines: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(f"[default]\n{lines}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(EnvironmentFailure, match=told) as refused:
        assert has_credentials()  # those of a role are not asked for before they are used
        assert Aws("us-east-1").account
    assert "\n" not in str(refused.value)
    assert "`aws sts get-caller-identity` has to work" in str(refused.value)


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({CONTAINER: "http://example.com/x"}, "of container-role: Unsupported host"),
        (
            {
                CONTAINER: "http://127.0.0.1:9/x",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/none/token",
            },
            "of container-role: .*/none/token",
        ),
    ],
)
def test_what_is_wrong_in_a_container_is_one_line(
    variables: dict[str, str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EnvironmentFailure, match=told):
        has_credentials()


def test_an_endpoint_that_is_no_address_is_told_with_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost")
    with pytest.raises(EnvironmentFailure, match=r"Invalid endpoint: localhost \(AWS_ENDPOINT_URL"):
        Aws("us-east-1").client("sts")
