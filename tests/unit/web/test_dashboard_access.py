"""Who may use the dashboard."""

import pytest

from spotelastic.web.server.access import DashboardAccess

ACCESS = DashboardAccess(8642)
HOST = {"Host": "127.0.0.1:8642"}
OURS = {**HOST, "Origin": "http://127.0.0.1:8642", "Sec-Fetch-Site": "same-origin"}


def refusal(
    headers: dict[str, str],
    method: str = "GET",
    path: str = f"{ACCESS.root}c/demo",
    cookie: str = ACCESS.cookie,
) -> str:
    return ACCESS.refusal(method, path, headers, cookie)


def test_the_browser_that_was_given_the_address_gets_in() -> None:
    assert refusal(HOST) == ""
    assert refusal({"Host": "localhost:8642"}) == ""
    assert refusal(HOST, path="/open", cookie="") == "", "the token is looked at there"
    assert refusal(OURS, "POST") == ""
    assert ACCESS.opens(ACCESS.token)


@pytest.mark.parametrize(
    "cookie",
    ["", "x", ACCESS.token, ACCESS.folder, "é", "\udcff"],
    ids=["none", "other", "token", "folder", "no ASCII", "no text"],
)
def test_nobody_else_does(cookie: str) -> None:
    assert "open the address" in refusal(HOST, cookie=cookie)
    assert cookie == ACCESS.token or not ACCESS.opens(cookie)


@pytest.mark.parametrize(
    "path",
    ["/", "/c/demo", "/style.css", f"/x{ACCESS.root}", "/open/"],
    ids=["root", "cluster", "style", "below", "open"],
)
def test_nothing_is_outside_of_the_folder(path: str) -> None:
    assert "open the address" in refusal(HOST, path=path)


@pytest.mark.parametrize(
    "host",
    ["", "evil.example:8642", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:8642.evil.example", "0:8642"],
)
def test_another_name_for_loopback_is_refused(host: str) -> None:
    """As a page of theirs would have it whose name resolves to 127.0.0.1 by now."""
    assert "no other name's" in refusal({**OURS, "Host": host})


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://127.0.0.1:8888",
        "https://127.0.0.1:8642",
        "http://localhost:8642",
        "http://127.0.0.1:8642.evil.example",
        "null",
        "",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_page_of_another_origin_is_refused(origin: str, method: str) -> None:
    """Also one of another port of this machine, whose requests carry strict cookies."""
    assert "another origin" in refusal({**OURS, "Origin": origin}, method)


def test_a_command_says_where_it_comes_from() -> None:
    assert "does not say" in refusal(HOST, "POST")
    for site in ("cross-site", "same-site", "none"):
        assert "another site" in refusal({**OURS, "Sec-Fetch-Site": site}, "POST")


def test_each_dashboard_has_secrets_of_its_own_and_does_not_show_them() -> None:
    other = DashboardAccess(8642)
    assert len({ACCESS.token, ACCESS.cookie, ACCESS.folder, other.token, other.cookie}) == 5
    assert len(ACCESS.token) >= 32
    assert not other.opens(ACCESS.token)
    assert not ACCESS.opens("")
    for secret in (ACCESS.token, ACCESS.cookie, ACCESS.folder):
        assert secret not in repr(ACCESS)
