"""Names every key that spotelastic keeps in etcd, with the process that writes it and its value.

All keys of one run are under `/spotelastic/<run>/`. Two branches keep the number of watch events
linear in the number of nodes: all agents watch `all/`; only the holder and the controllers watch
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
| nodes/slow/<node>            | -          | holder                   | model.progress.SlowNode |
| nodes/finished/<round>/<node>| -          | its agent                | model.job.Finished   |
| history/<number>             | -          | holder                   | model.round.RoundRecord |
| ranks/<node rank>            | the node's | its agent                | node id              |
| group                        | -          | the first launcher       | random; of all nodes |
| commit                       | -          | agents                   | model.round.Commit |
| events/<time>-<random>       | -          | agents, controllers      | model.progress.Event |
| controller/leader            | the controller's | election among controllers | instance id  |
| controller/live/<instance>   | the controller's | each controller    | address              |
"""

from dataclasses import dataclass

ROOT = "/spotelastic/"
"""Prefix of the keys of all runs."""


class _Key:
    """A key by its path below the run's; what ends with a slash is the prefix of several."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, keys: "Keys", _: object = None) -> str:
        return f"{keys.root}{self._path}"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one run.

    Functions that name a node's key return the prefix of all nodes without one.
    """

    run: str

    @property
    def root(self) -> str:
        """Prefix of all keys of the run."""
        return f"{ROOT}{self.run}/"

    @property
    def of_agents(self) -> tuple[str, ...]:
        """The keys that agents write; what ends with a slash is the prefix of several."""
        return (
            *(self.round, self.proposal, self.job, self.settings, self.holder, self.reference),
            *(self.nodes, self.history(), self.rank(), self.group, self.commit, self.event()),
        )

    all = _Key("all/")
    round = _Key("all/round")
    proposal = _Key("all/proposal")
    job = _Key("all/job")
    ending = _Key("all/ending")
    settings = _Key("all/settings")
    holder = _Key("all/holder")
    reference = _Key("all/reference")
    nodes = _Key("nodes/")
    group = _Key("group")
    commit = _Key("commit")
    leader = _Key("controller/leader")

    def live(self, node: str = "") -> str:
        """Registration of a node."""
        return f"{self.nodes}live/{node}"

    def ack(self, node: str = "") -> str:
        """Return the key of a node's answer to a proposed round."""
        return f"{self.nodes}ack/{node}"

    def vote(self, node: str = "") -> str:
        """Return the key of a node's answer to a proposal."""
        return f"{self.nodes}vote/{node}"

    def progress(self, node: str = "") -> str:
        """How far a node is."""
        return f"{self.nodes}progress/{node}"

    def snapshots(self, node: str = "") -> str:
        """Return the key of the sealed slots that a node outside of the round offers."""
        return f"{self.nodes}snapshots/{node}"

    def drain(self, node: str = "") -> str:
        """Notice of a node that will go."""
        return f"{self.nodes}drain/{node}"

    def failure(self, node: str = "") -> str:
        """Return the key of the last failure on a node."""
        return f"{self.nodes}failure/{node}"

    def slow(self, node: str = "") -> str:
        """Return the key of a node that keeps the others waiting."""
        return f"{self.nodes}slow/{node}"

    def finished(self, round_incarnation: str = "", node: str = "") -> str:
        """Return the key that says that a node has finished the script in this round.

        Without a round: the prefix of all.
        """
        if not round_incarnation:
            return f"{self.nodes}finished/"
        return f"{self.nodes}finished/{round_incarnation}/{node}"

    def rank(self, number: int | None = None) -> str:
        """Return the key of the node that has this node rank; without a number the prefix of all.

        Nobody watches it.
        """
        return f"{self.root}ranks/" + ("" if number is None else f"{number}")

    def history(self, number: int | None = None) -> str:
        """Return the key of a past round; without a number the prefix of all."""
        return f"{self.root}history/" + ("" if number is None else f"{number:08d}")

    def event(self, name: str = "") -> str:
        """Return the key of an event; without a name the prefix of all."""
        return f"{self.root}events/{name}"

    def controller(self, instance: str = "") -> str:
        """Registration of a controller."""
        return f"{self.root}controller/live/{instance}"
