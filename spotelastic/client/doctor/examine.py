"""Makes all looks of `doctor` at the same time, each with a deadline.

A look that hangs holds up nothing: its thread is left behind, and ends with the process. A look
that fails is a finding.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spotelastic.aws.base.clients import Aws, calling, has_credentials
from spotelastic.client.doctor import account_checks, machine
from spotelastic.client.doctor.finding import Finding, Findings, Part, Verdict, exit_code
from spotelastic.clock import steady
from spotelastic.errors import SpotelasticError, Unavailable, told

WITHIN = 90.0
"""Seconds after which whatever has not answered is reported as such; torch takes longest."""
NO_ACCOUNT = (
    "log in with `aws configure sso` or `aws configure`, or set AWS_PROFILE; "
    "`spotelastic up --local` needs no account"
)
READ_TIMEOUT, ATTEMPTS = 8.0, 2
"""Of calls to AWS: seconds for one answer, and tries."""


@dataclass(frozen=True, slots=True)
class Look:
    """One thing to look at."""

    part: Part
    check: str
    run: Callable[[], Verdict | None]
    """Returns None if there is nothing to tell."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What is asked for."""

    local: bool = False
    """The local cloud; AWS is not looked at then."""
    aws: bool = False
    region: str | None = None
    types: Sequence[str] = ()
    bucket: str | None = None


def looks(needs: Needs) -> tuple[Look, ...]:
    """Return what to look at for these needs."""
    mine = (
        Look("this machine", "system", machine.python),
        Look("this machine", "torch", lambda: _torch(needs)),
        Look("this machine", "GPUs", lambda: machine.judge_driver(machine.driver_facts())),
        Look("this machine", "/dev/shm", machine.shm),
        Look("this machine", "open files", machine.files),
        Look("this machine", "disk", machine.disk),
        Look("local cloud", "parts", lambda: machine.local_parts(needed=needs.local)),
    )
    if needs.local:
        return mine
    return (
        *mine,
        Look("AWS", "credentials", lambda: _identity(needs)),
        _asking(needs, "clock", account_checks.clock_skew),
        _asking(needs, "bucket", lambda aws: account_checks.bucket(aws, needs.bucket)),
        _asking(needs, "spot quota", lambda aws: account_checks.quota(aws, needs.types)),
        _asking(needs, "control nodes", account_checks.control_quota),
        _asking(needs, "network", account_checks.network_quota),
        _asking(needs, "event rules", account_checks.rule_quota),
    )


def _torch(needs: Needs) -> Verdict:
    driver = machine.driver_facts()
    gpus = len(driver.gpus) if driver is not None else 0
    try:
        facts = machine.torch_facts()
    except machine.SlowTorch as error:
        advice = "this machine is busy, or its disk is slow: run `spotelastic doctor` again later"
        return Verdict("no answer", str(error), advice)
    return machine.judge_torch(facts, needed=needs.local, gpus=gpus)


def _identity(needs: Needs) -> Verdict:
    aws = _account(needs)
    if aws is not None:
        return account_checks.identity(aws)
    return Verdict("missing" if needs.aws else "note", "none are configured", NO_ACCOUNT)


def _asking(needs: Needs, check: str, look: Callable[[Aws], Verdict]) -> Look:
    def run() -> Verdict | None:
        aws = _account(needs)
        return None if aws is None else look(aws)

    return Look("AWS", check, run)


def _account(needs: Needs) -> Aws | None:
    """Return the account; None without credentials.

    Threads must not make a client together, so that each look has its own.
    """
    with calling("find AWS credentials"):
        if not has_credentials():
            return None
    return Aws(needs.region, read_timeout=READ_TIMEOUT, attempts=ATTEMPTS)


def examine(wanted: Sequence[Look], within: float = WITHIN) -> Findings:
    """Make all looks, and return what was found, in the order of the looks."""
    answers: queue.SimpleQueue[tuple[int, Verdict | None]] = queue.SimpleQueue()
    for number, look in enumerate(wanted):

        def work(number: int = number, look: Look = look) -> None:
            answers.put((number, _made(look)))

        threading.Thread(target=work, name="look", daemon=True).start()
    found: dict[int, Verdict | None] = {}
    deadline = steady() + within
    while len(found) < len(wanted):
        try:
            number, verdict = answers.get(timeout=max(0.0, deadline - steady()))
        except queue.Empty:
            break
        found[number] = verdict
    late = Verdict("no answer", f"nothing within {within:g} s")
    told_of = [(look, found.get(number, late)) for number, look in enumerate(wanted)]
    findings = [
        Finding(look.part, look.check, made.state, made.found, made.advice)
        for look, made in told_of
        if made is not None
    ]
    findings = _without_repeats(findings)
    return Findings(tuple(findings), exit_code(findings))


def _without_repeats(findings: Sequence[Finding]) -> list[Finding]:
    """Leave out what another finding of the same part says in the same words: one cause."""
    first: dict[tuple[str, str], Finding] = {}
    for each in findings:
        key = each.found if each.state != "ok" else each.check
        first.setdefault((each.part, key), each)
    return list(first.values())


def _made(look: Look) -> Verdict | None:
    try:
        return look.run()
    except Unavailable as error:
        return Verdict("no answer", str(error))
    except SpotelasticError as error:
        return Verdict("missing", str(error))
    except Exception as error:  # of whatever library: a doctor that crashes helps nobody
        return Verdict("no answer", told(error))
