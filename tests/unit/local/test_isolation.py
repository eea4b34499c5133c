"""Which calls do not reach their region while some are cut off."""

import pytest
from support.unkind.isolation import Isolation, middleware

EAST, WEST, SOUTH = "us-east-1", "us-west-2", "sa-east-1"
KEYS = {"ours": EAST, "theirs": WEST}


@pytest.mark.parametrize(
    ("cut", "key", "region", "lost"),
    [
        ((), "ours", WEST, False),
        ((WEST,), "ours", WEST, True),
        ((WEST,), "theirs", EAST, True),
        ((WEST,), "theirs", WEST, False),
        ((WEST,), "ours", SOUTH, False),
        ((WEST,), "a laptop's", WEST, False),
    ],
)
def test_calls_between_regions_are_cut_and_those_of_others_are_not(
    cut: tuple[str, ...], key: str, region: str, lost: bool
) -> None:
    isolation = Isolation(KEYS.get)
    isolation.regions = frozenset(cut)
    assert isolation.separates(key, region) == lost


@pytest.mark.parametrize(("service", "code"), [("s3", "503"), ("sts", "200")])
def test_a_call_is_answered_that_the_service_is_not_there_unless_it_is_of_no_region(
    service: str, code: str
) -> None:
    isolation = Isolation(KEYS.get)
    isolation.regions = frozenset({WEST})
    said: list[str] = []

    def served(environ: object, start_response: object) -> list[bytes]:
        said.append("200 OK")
        return [b""]

    environ = {
        "HTTP_AUTHORIZATION": f"AWS4 Credential=ours/20261127/{WEST}/{service}/aws4_request,",
        "REQUEST_METHOD": "HEAD",
    }
    middleware(isolation, served)(environ, lambda status, headers: said.append(status))
    assert [each[:3] for each in said] == [code]
    assert isolation.unanswered == (code == "503")
