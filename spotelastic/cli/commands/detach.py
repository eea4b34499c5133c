"""A cluster that goes on when the command that shows or changes it does not."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from spotelastic.aws.base.clients import SignedOut
from spotelastic.cli.render.plan import lingers
from spotelastic.client.target import CloudEnded
from spotelastic.errors import EnvironmentFailure, SpotelasticError, Unavailable
from spotelastic.local.joining import CloudUse
from spotelastic.signals import Signals


@dataclass(frozen=True, slots=True)
class LeftRunning:
    """Whatever ends the command, its user reads that the cluster is up, and how to come back."""

    name: str
    linger: float | None
    """Seconds from the end of the job to that of the cluster; None for ever."""
    undo: ExitStack
    """What would take the cluster down."""
    signals: Signals
    say: Callable[[str], None]
    region: str | None = None
    """Where `up` was told one: other commands look elsewhere otherwise."""
    use: CloudUse | None = None
    """Of the local cloud."""
    owned: bool = False
    """A local cluster that ends with the commands that work on it."""

    @property
    def named(self) -> str:
        """As other commands must be told."""
        return self.name + (f" --region {self.region}" if self.region else "")

    def leave(self) -> None:
        """The cluster is not taken down; but a local one is with the last command that works on it,
        unless one of them has left it to stay."""
        self.undo.pop_all()
        if self.use is not None and self.use.leave(self.say) != "nothing":
            return
        self.say(
            f"{self.name} stays up: spotelastic status {self.named}, "
            f"spotelastic logs -f {self.named}; come back with the same `spotelastic up`; "
            f"end it with spotelastic down {self.named}; {lingers(self.linger)}"
        )

    @contextmanager
    def changed(self) -> Iterator[None]:
        """While a cluster that is up already is made what was asked for."""
        try:
            with self._left():
                yield
        except KeyboardInterrupt:
            self.say(
                f"{self.name} stays up, and may be changed in part: the same `spotelastic up` does "
                f"the rest and shows it; end it with spotelastic down {self.named}"
            )
            raise
        except SignedOut as error:
            raise EnvironmentFailure(
                f"{error}; {self.name} goes on meanwhile, and may be changed in part: the same "
                "`spotelastic up` does the rest"
            ) from error

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While it is shown. What goes wrong meanwhile is the watcher's trouble, not the job's."""
        try:
            with self._left():
                yield
        except CloudEnded:
            self.undo.pop_all()  # there is nothing left to take down
            raise
        except SpotelasticError as error:
            self.undo.pop_all()
            raise EnvironmentFailure(
                f"{error}; {self.name} goes on meanwhile: the same `spotelastic up` shows it "
                f"again, `spotelastic down {self.named}` ends it"
            ) from error
        except BaseException:
            self.leave()
            raise

    @contextmanager
    def ended(self) -> Iterator[None]:
        """While it is taken down after its job."""
        try:
            yield
        except (SignedOut, Unavailable) as error:
            raise EnvironmentFailure(
                f"{error}; what is left of {self.name} ends with `spotelastic down {self.named}`"
            ) from error

    @contextmanager
    def _left(self) -> Iterator[None]:
        """A signal in it ends the command alone, and is answered so."""
        before, self.signals.meaning = self.signals.meaning, "leaving"
        yield
        self.signals.meaning = before
