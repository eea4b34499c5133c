"""Keeps a cluster running when the command that shows or changes it ends.

It tells the user how to return.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from spotelastic.aws.base.clients import SignedOut
from spotelastic.cli.render.plan_view import lingers
from spotelastic.client.targets.cloud_target import CloudEnded, ClusterTarget
from spotelastic.client.watch import ControlNodesMissing
from spotelastic.errors import EnvironmentFailure, SpotelasticError, Unavailable
from spotelastic.signals import Signals


@dataclass(frozen=True, slots=True)
class LeftRunning:
    """A cluster that outlives the command.

    However the command ends, the user is told how to come back.
    """

    name: str
    target: ClusterTarget
    linger: float | None
    """Seconds from the end of the job to the end of the cluster; None for ever."""
    undo: ExitStack
    """The clean-up that would take the cluster down."""
    signals: Signals
    say: Callable[[str], None]

    @property
    def named(self) -> str:
        """The cluster's arguments for other commands: its name and, if needed, its region."""
        return self.target.arguments_of(self.name)

    def leave(self) -> None:
        """Leave the cluster up and tell the user how to come back.

        A local cluster still ends with the last command that uses it, unless a command has asked to
        keep it.
        """
        self.undo.pop_all()
        if self.target.leave(self.say):
            return
        self.say(
            f"{self.name} stays up: spotelastic status {self.named}, "
            f"spotelastic logs -f {self.named}; come back with the same `spotelastic up`; "
            f"end it with spotelastic down {self.named}; {lingers(self.linger)}"
        )

    @contextmanager
    def changed(self) -> Iterator[None]:
        """Wrap the change of a running cluster: an interruption leaves it up."""
        try:
            with self._left():
                yield
        except KeyboardInterrupt:
            self.say(
                f"{self.name} stays up, and may be partly changed: run the same `spotelastic up` "
                f"to finish; end it with spotelastic down {self.named}"
            )
            raise
        except SignedOut as error:
            raise EnvironmentFailure(
                f"{error}; {self.name} keeps running, and may be partly changed: run the same "
                "`spotelastic up` to finish"
            ) from error

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Wrap the watching of a job: an error of the watcher does not end the job."""
        try:
            with self._left():
                yield
        except (CloudEnded, ControlNodesMissing):
            self.undo.pop_all()  # nothing is left to take down
            raise
        except SpotelasticError as error:
            self.undo.pop_all()
            raise EnvironmentFailure(
                f"{error}; {self.name} keeps running: the same `spotelastic up` shows it again, "
                f"`spotelastic down {self.named}` ends it"
            ) from error
        except BaseException:
            self.leave()
            raise

    @contextmanager
    def ended(self) -> Iterator[None]:
        """Wrap the teardown after the job: an error says what is left and how to remove it."""
        try:
            yield
        except (SignedOut, Unavailable) as error:
            raise EnvironmentFailure(
                f"{error}; remove what is left of {self.name} with `spotelastic down {self.named}`"
            ) from error

    @contextmanager
    def _left(self) -> Iterator[None]:
        """Have a signal end only this command, and print that it leaves."""
        before, self.signals.meaning = self.signals.meaning, "leaving"
        yield
        self.signals.meaning = before
