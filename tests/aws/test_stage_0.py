"""Stage 0 of a first run on AWS: what can be known without making anything."""

from support.aws.account_checks import all_checks
from support.aws.first_run import FOUND, marks
from support.aws.run_evidence import Evidence

from spotelastic.aws.base.clients import Aws

pytestmark = marks(0)


def test_the_account() -> None:
    evidence = Evidence(FOUND, "0")
    all_checks(Aws(), evidence)
    evidence.finish()
