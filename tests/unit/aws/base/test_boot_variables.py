"""Variables with which nodes boot behind a proxy: who heeds them reaches its own without it."""

import subprocess
from urllib.request import proxy_bypass

import pytest
from support.processes.patience import PATIENT

from spotelastic.aws.base import boot_variables
from spotelastic.aws.base.boot_variables import INDEX, NAMES, check, exported, variables
from spotelastic.aws.base.clients import ENCRYPTION
from spotelastic.aws.base.infra_files import infra
from spotelastic.errors import UsageError
from spotelastic.model.job import AccountDemands

PROXY, PYPI = "http://proxy.corp:3128", "https://pypi.corp/simple?a=1&b=~2"
DEMANDS = AccountDemands(proxy=PROXY, no_proxy=(".corp", "10.9.0.0/16"), index_url=PYPI)


def made(demands: AccountDemands = DEMANDS) -> dict[str, str]:
    """What a shell has that has run the lines of the user data."""
    found = variables(
        demands,
        ["10.0.0.5", "10.0.1.5"],
        ["10.0.0.0/24"],
        ["s3", "ssm"],
        "eu-west-1",
        "amazonaws.com",
    )
    script = f"{exported(found)}exec env -0"
    done = subprocess.run(
        ["bash", "-euc", script], env={}, capture_output=True, check=True, timeout=PATIENT
    )
    pairs = (each.partition("=") for each in done.stdout.decode().split("\0") if each)
    return {name: value for name, _, value in pairs if name in NAMES}


def test_all_spellings_are_set_and_nothing_without_a_proxy_or_an_index() -> None:
    found = made()
    assert set(found) == {*boot_variables.PROXY, *INDEX}
    assert {found[name] for name in found if "http" in name.lower()} == {PROXY}
    assert found["NO_PROXY"] == found["no_proxy"]
    assert {found[name] for name in INDEX} == {PYPI}
    assert set(made(AccountDemands(index_url=PYPI))) == set(INDEX)
    assert made(AccountDemands()) == {}


def test_the_encryption_of_objects_is_what_the_environment_of_up_names() -> None:
    key = "arn:aws:kms:eu-west-1:123456789012:key/1a-2b"
    environment = {"AWS_SERVER_SIDE_ENCRYPTION": "aws:kms", "AWS_SSE_KMS_KEY_ID": key, "HOME": "/"}
    found = boot_variables.encryption(environment)
    assert found == {name: environment[name] for name in ENCRYPTION.values()}
    assert f"export AWS_SSE_KMS_KEY_ID='{key}'\n" in exported(found)
    assert boot_variables.encryption({"AWS_SSE_KMS_KEY_ID": ""}) == {}
    with pytest.raises(UsageError, match="AWS_SERVER_SIDE_ENCRYPTION=a'b: expected aws:kms"):
        boot_variables.encryption({"AWS_SERVER_SIDE_ENCRYPTION": "a'b"})


@pytest.mark.parametrize(
    ("host", "beside"),
    [
        ("169.254.169.254", True),
        ("10.0.1.5", True),
        ("s3.eu-west-1.amazonaws.com", True),
        ("bucket.s3.eu-west-1.amazonaws.com", True),
        ("ssm.eu-west-1.amazonaws.com", True),
        ("git.corp", True),
        ("sqs.eu-west-1.amazonaws.com", False),
        ("pypi.org", False),
    ],
)
def test_what_is_near_is_reached_without_the_proxy(
    host: str, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in made().items():
        monkeypatch.setenv(name, value)
    assert bool(proxy_bypass(host)) == beside


def test_what_a_node_is_given_reaches_its_service_and_its_container() -> None:
    unit, install = (
        infra(f"boot/{name}").read_text() for name in ("spotelastic.service", "install.sh")
    )
    assert "\nEnvironmentFile=-@HOME@/network\n" in unit
    lines = install.splitlines()
    (told,) = (line for line in lines if line.startswith("told="))
    (line,) = (line for line in lines if line.startswith("env | grep"))
    others = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "MY_PIP_INDEX_URL")
    text = "".join(f"{name}=x\n" for name in (*NAMES, *others))
    kept = subprocess.run(
        ["bash", "-c", f"{told}\n{line.split(' | ', 1)[1].partition(' > ')[0]}"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENT,
    ).stdout
    assert kept == "".join(f"{name}=x\n" for name in NAMES)


@pytest.mark.parametrize(
    ("demands", "why"),
    [
        (AccountDemands(proxy="proxy:3128"), "--proxy proxy:3128: expected http://HOST:PORT"),
        (AccountDemands(proxy="http://u:secret@proxy:3128"), "--proxy: a URL with a password"),
        (
            AccountDemands(index_url="https://t0ken@pypi/simple"),
            "--index-url: a URL with a password",
        ),
        (AccountDemands(proxy="http://u:secret!@proxy:3128"), "--proxy: a URL with a password"),
        (AccountDemands(proxy="u:secret@proxy:3128"), "--proxy: a URL with a password"),
        (AccountDemands(index_url="https://pypi/$(id)"), "--index-url .*: expected"),
        (AccountDemands(proxy=PROXY, no_proxy=("a'b",)), "--no-proxy a'b: expected a host"),
        (AccountDemands(no_proxy=("a",)), "without --proxy, which is missing"),
    ],
)
def test_what_nodes_cannot_have_is_refused_without_its_secret(
    demands: AccountDemands, why: str
) -> None:
    with pytest.raises(UsageError, match=why.replace("$", r"\$").replace("(", r"\(")) as refused:
        check(demands)
    assert "secret" not in str(refused.value) and "t0ken" not in str(refused.value)
    boot_variables.check(DEMANDS)
