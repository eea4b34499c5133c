"""Every key that spotelastic keeps in its key-value store, and who writes it.

All keys of one run live under `/spotelastic/<run>/`. Two branches keep the number of watch events
linear in the number of nodes: everybody watches `all/`, only the holder and the controllers watch
`nodes/`.

| key                          | lease      | written by               | value                |
|------------------------------|------------|--------------------------|----------------------|
| all/round                    | -          | holder                   | model.round.Round    |
| all/proposal                 | -          | holder                   | model.agreement.Proposal |
| all/job                      | -          | holder, controller       | model.job.Job        |
| all/ending                   | -          | controller               | model.job.Ending     |
| all/settings                 | -          | launcher, controller     | model.job.Settings   |
| all/holder                   | the node's | election among agents    | node id              |
| all/reference                | -          | the first node           | model.job.Reference  |
| nodes/live/<node>            | the node's | its agent                | model.node.Node      |
| nodes/ack/<node>             | the node's | its agent                | .round.Acknowledgement |
| nodes/vote/<node>            | the node's | its agent                | model.agreement.Vote |
| nodes/progress/<node>        | the node's | its agent                | model.progress.Progress |
| nodes/snapshots/<node>       | the node's | its agent                | model.round.SlotOffer|
| nodes/drain/<node>           | -          | agent, controller        | model.notice.Drain   |
| nodes/failure/<node>         | -          | its agent                | model.job.Failure    |
| nodes/finished/<round>/<node>| -          | its agent                | model.job.Finished   |
| history/<number>             | -          | holder                   | model.round.RoundRecord |
| ranks/<node rank>            | the node's | its agent                | node id              |
| group                        | -          | the first launcher       | random; of all nodes |
| commit                       | -          | agents                   | model.round.Commit |
| events/<time>-<random>       | -          | anybody                  | model.progress.Event |
| controller/leader            | the controller's | election among controllers | instance id  |
| controller/live/<instance>   | the controller's | each controller    | address              |
"""

from dataclasses import dataclass

ROOT = "/spotelastic/"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one run."""

    run: str

    @property
    def root(self) -> str:
        return f"{ROOT}{self.run}/"

    @property
    def all(self) -> str:
        return f"{self.root}all/"

    @property
    def round(self) -> str:
        return f"{self.all}round"

    @property
    def proposal(self) -> str:
        return f"{self.all}proposal"

    @property
    def job(self) -> str:
        return f"{self.all}job"

    @property
    def ending(self) -> str:
        """There while the job is being ended."""
        return f"{self.all}ending"

    @property
    def settings(self) -> str:
        return f"{self.all}settings"

    @property
    def holder(self) -> str:
        return f"{self.all}holder"

    @property
    def reference(self) -> str:
        """The node that all others must match."""
        return f"{self.all}reference"

    @property
    def nodes(self) -> str:
        return f"{self.root}nodes/"

    def live(self, node: str = "") -> str:
        return f"{self.nodes}live/{node}"

    def ack(self, node: str = "") -> str:
        return f"{self.nodes}ack/{node}"

    def vote(self, node: str = "") -> str:
        return f"{self.nodes}vote/{node}"

    def progress(self, node: str = "") -> str:
        return f"{self.nodes}progress/{node}"

    def snapshots(self, node: str = "") -> str:
        return f"{self.nodes}snapshots/{node}"

    def drain(self, node: str = "") -> str:
        return f"{self.nodes}drain/{node}"

    def failure(self, node: str = "") -> str:
        return f"{self.nodes}failure/{node}"

    def finished(self, round_incarnation: str = "", node: str = "") -> str:
        if not round_incarnation:
            return f"{self.nodes}finished/"
        return f"{self.nodes}finished/{round_incarnation}/{node}"

    def rank(self, number: int) -> str:
        """Who has this node rank. Nobody watches it."""
        return f"{self.root}ranks/{number}"

    @property
    def group(self) -> str:
        """Nobody watches it."""
        return f"{self.root}group"

    @property
    def commit(self) -> str:
        return f"{self.root}commit"

    def history(self, number: int | None = None) -> str:
        return f"{self.root}history/" + ("" if number is None else f"{number:08d}")

    def event(self, name: str = "") -> str:
        return f"{self.root}events/{name}"

    @property
    def leader(self) -> str:
        return f"{self.root}controller/leader"

    def controller(self, instance: str = "") -> str:
        return f"{self.root}controller/live/{instance}"
