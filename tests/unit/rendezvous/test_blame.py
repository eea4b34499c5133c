"""Which failure of a round caused the others, whatever was told first."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotelastic.model.job import Failure
from spotelastic.model.progress import Event
from spotelastic.model.round import Member, Round
from spotelastic.rendezvous.failures import blame

BLANK = Failure("f", "n0", "r1", 0, 0, 0.0, 1)
LOST = [
    "RuntimeError: Read error [127.0.0.1]:3228: Connection reset by peer",
    "RuntimeError: Connection closed by peer [fd00::1]:10911",
    "RuntimeError: Broken pipe",
    "DistNetworkError: failed to recv, got 0 bytes",
    "RuntimeError: Timed out waiting 1800000ms for recv operation to complete",
    "DistBackendError: NCCL error: remote process exited or there was a network error",
    "ended by SIGABRT: NCCL watchdog thread terminated: remote process exited",
    "DistError: the process group was closed during the step",
    "RuntimeError: Software caused connection abort",
    "DistNetworkError: The client socket has failed to connect: Network is unreachable",
    "OSError: [Errno 107] Transport endpoint is not connected",
]
OWN = [
    "ended by SIGKILL",
    "ended by SIGSEGV",
    "ended by SIGABRT: ranks passed different shapes or types to a collective",
    "ValueError: too many values to unpack",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x4 and 8x4)",
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
    "SystemExit: 3",
    "RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed",
    "ended with exit code 7",
]
RAISED_FROM_A_LOSS = (
    "RuntimeError: Read error: Connection reset by peer\n\nDuring handling of the above exception,"
    " another exception occurred:\n\nSystemExit: 1"
)
symptoms = st.one_of(
    st.sampled_from(LOST).map(lambda said: replace(BLANK, message=said)),
    st.just(replace(BLANK, message="RuntimeError: [gloo]", broken=True)),
    st.just(replace(BLANK, message="SystemExit: 1", traceback=RAISED_FROM_A_LOSS)),
)
causes = st.sampled_from(OWN).map(lambda said: replace(BLANK, message=said))


@st.composite
def told(draw: st.DrawFn, kinds: st.SearchStrategy[Failure], least: int) -> list[Failure]:
    found = draw(st.lists(kinds, min_size=least, max_size=6))
    times = draw(st.lists(st.floats(0, 9), min_size=len(found), max_size=len(found)))
    return [replace(each, at=at) for each, at in zip(found, times, strict=True)]


def named(failures: list[Failure]) -> list[Failure]:
    """Each from a node and rank of its own."""
    return [
        replace(each, id=str(rank), node=f"n{rank}", rank=rank)
        for rank, each in enumerate(failures)
    ]


@given(told(symptoms, 0), told(causes, 1), st.randoms())
def test_who_only_lost_a_peer_is_never_blamed(lost, own, random) -> None:  # type: ignore[no-untyped-def]
    failures = named([*lost, *own])
    random.shuffle(failures)
    found = blame.first(failures)
    assert found is not None and found.message in OWN and not blame.is_symptom(found)
    assert found.at == min(each.at for each in failures if not blame.is_symptom(each))


@given(told(symptoms, 1))
def test_of_those_that_lost_a_peer_the_first_is_shown(lost: list[Failure]) -> None:
    found = blame.first(named(lost))
    assert found is not None and blame.is_symptom(found)


@given(told(st.one_of(causes, symptoms), 1), st.randoms())
def test_the_order_in_which_they_are_told_is_of_no_account(told, random) -> None:  # type: ignore[no-untyped-def]
    failures = named(told)
    shuffled = [*failures]
    random.shuffle(shuffled)
    assert blame.first(shuffled) == blame.first(failures)


@pytest.mark.parametrize("message", ["requests.get(url, timeout=3)", "pipe.read(1)  # by peer"])
def test_lines_of_code_in_a_traceback_blame_nobody(message: str) -> None:
    failure = replace(BLANK, message="KeyError: 'x'", traceback=f"    {message}\nKeyError: 'x'")
    assert not blame.is_symptom(failure)


def test_the_end_of_a_job_names_the_newest_failure_that_says_why() -> None:
    lost = replace(BLANK, node="n2", round="r3", at=9.0, message=LOST[0])
    old = replace(BLANK, node="n1", round="r1", at=1.0, message=OWN[0])
    newer = replace(BLANK, node="n0", round="r2", at=5.0, message=OWN[3])
    store = replace(BLANK, node="n4", round="r3", rank=-1, at=8.0, message="the store ended")
    assert blame.of_job([lost, newer, old, store], "r3") == newer
    assert blame.of_job([lost, store], "r3") == lost
    last = replace(BLANK, node="n5", round="r3", at=9.5, message=OWN[1])
    assert blame.of_job([lost, last, newer], "r3") == last
    assert blame.of_job([], "r3") is None


PROPOSED = Round(
    2,
    "r2",
    "proposed",
    (Member("n0", "i", 0, "a", "", 1),),
    "worker",
    "workers lost a peer: 1 node; 3 times in a row: starts in 2 s",
    parent="r1",
)


def test_a_proposed_round_learns_who_failed() -> None:
    lost = replace(BLANK, message=LOST[0])
    assert blame.corrected(PROPOSED, [lost]) == PROPOSED
    killed = replace(BLANK, node="n1", at=5.0, message=OWN[0])
    found = blame.corrected(PROPOSED, [lost, killed])
    assert found.nodes == ("n1",)
    assert found.reason == "a worker failed on n1: 1 node; 3 times in a row: starts in 2 s"
    assert blame.corrected(found, [lost, replace(killed, node="n3", at=1.0)]) == found
    assert blame.corrected(PROPOSED, [lost, replace(killed, round="r0")]) == PROPOSED


@pytest.mark.parametrize("said", [*LOST, *OWN])
def test_an_event_says_whether_it_only_tells_of_a_peer(said: str) -> None:
    """One of an earlier version says so by its message alone."""
    old = Event(1.0, "failure", f"rank 0: {said}", "n0")
    assert blame.tells_of_peer(old) == (said in LOST)
    assert not blame.tells_of_peer(replace(old, data={"lost_peer": False}))
    assert blame.tells_of_peer(replace(old, data={"lost_peer": True}))


@pytest.mark.parametrize(("code", "kill"), [(-9, True), (-11, True), (-6, False), (1, False)])
def test_a_program_that_aborts_was_not_killed(code: int, kill: bool) -> None:
    assert blame.is_kill(code) == kill
    raised = replace(BLANK, node="n1", at=0.5, message=OWN[3])
    found = blame.first([raised, replace(BLANK, at=1.0, message="ended", exit_code=code)])
    assert found is not None and (found.node == "n0") == kill, "what is raised may be of a loss"
