"""What a node tells while it gets ready for a script."""

from threading import Semaphore

from support.processes.patience import PATIENT

from spotelastic.bootstrap.reports import repeated


def test_a_node_that_prepares_for_long_says_so_again_and_again() -> None:
    said, told = list[str](), Semaphore(0)

    def tell(line: str) -> None:
        said.append(line)
        told.release()

    with repeated(tell, 0.01) as say:
        say("building the environment of requirements.txt")
        for _ in range(3):
            assert told.acquire(timeout=PATIENT)
    assert said[0] == "building the environment of requirements.txt"
    assert set(said[1:]) == {"still building the environment of requirements.txt"}


def test_a_node_that_has_nothing_to_prepare_says_nothing() -> None:
    said = list[str]()
    with repeated(said.append, 0.001):
        pass
    assert said == []
