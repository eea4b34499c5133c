"""Stage 0 of a first run on AWS: what can be known without making anything."""

from support.account_checks import all_checks
from support.evidence import Evidence
from support.first_run import FOUND, marks

from spotelastic.aws.base.clients import Aws

pytestmark = marks(0)


def test_the_account() -> None:
    evidence = Evidence(FOUND, "0")
    all_checks(Aws(), evidence)
    evidence.finish()
