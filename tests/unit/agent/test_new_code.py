"""New settings and new code on a job that runs: what controller, holder and agent decide."""

from dataclasses import replace

from support.simulation.node_state import node_state

from spotelastic.agent import actions as do
from spotelastic.agent.decide import RESTART, RESTARTED
from spotelastic.agent.decide import decide as agent
from spotelastic.agent.state.values import NodeState, Workers
from spotelastic.cloud.model import GroupMember, Instance, WorkerGroup
from spotelastic.controller.decisions.decide import decide as controller
from spotelastic.controller.model.observation import (
    ControllerPolicy,
    DepartedNode,
    Replace,
    Resettle,
    Tell,
)
from spotelastic.controller.model.observation import Observation as Observed
from spotelastic.model.job import Environment, Job, JobSpec, Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.progress import Event
from spotelastic.model.round import Member, Round
from spotelastic.rendezvous.decision import WriteProposal, WriteRound
from spotelastic.rendezvous.rounds import decide as holder
from spotelastic.rendezvous.view import LiveNode, RunState

NOW = 1000.0
OLD, NEW = Settings(1, 2, code="old"), Settings(1, 2, code="new")
NODE = Node("a", "inc-a", "10.0.0.1", "", Fingerprint("3.11", "2.13", code="old"), "10.0.0.1:1")
MEMBER = Member("a", "inc-a", 0, "10.0.0.1", "", 1)
ROUND = Round(3, "r3", "started", (MEMBER,), "start", "", store="10.0.0.1:5", epoch=1, code="old")


def new_id() -> str:
    return "new"


def seen(settings: Settings, round_: Round) -> RunState:
    nodes = {"a": LiveNode(NODE, 1, 900.0)}
    return RunState(settings=settings, round=round_, holder="a", nodes=nodes, healthy_since=1.0)


# -- the controller ------------------------------------------------------------------------------


def observed(**changes: object) -> Observed:
    usual: dict[str, object] = {
        "desired": 1,
        "since": 500.0,
        "job": Job("running", 600.0),
        "settings": OLD,
        "wanted": OLD,
        "group": WorkerGroup("g", 1, (GroupMember("a", "InService"),)),
        "machines": {"a": Instance("a", "worker", "running", "m", "z", "10.0.0.1", True, 700.0)},
        "nodes": {"a": NODE},
    }
    return Observed(**(usual | changes))  # type: ignore[arg-type]


def test_what_the_user_wants_now_is_given_to_the_nodes_once() -> None:
    assert controller(observed(wanted=NEW), NOW, ControllerPolicy()).actions == (Resettle(NEW),)
    assert controller(observed(settings=NEW, wanted=NEW), NOW, ControllerPolicy()).actions == ()


def test_a_job_that_has_ended_is_not_changed_any_more() -> None:
    over = Job("succeeded", 900.0)
    actions = controller(observed(wanted=NEW, job=over), NOW, ControllerPolicy()).actions
    assert not any(isinstance(action, Resettle) for action in actions)


def test_a_node_that_went_to_come_back_is_no_loss_and_has_the_time_of_a_first_boot() -> None:
    policy = ControllerPolicy()
    restart = ("restart", "a", "::inc-a")
    away = {"nodes": {}, "left": {"a": DepartedNode("inc-a", NOW)}}
    lost = controller(observed(**away), NOW, policy).actions
    assert [action.event.kind for action in lost if isinstance(action, Tell)] == ["loss"]
    later = NOW + policy.silent_for + 1
    told = frozenset({restart})
    assert controller(observed(**away, told=told), later, policy).actions == ()
    late = NOW + policy.boot_within + 1
    replaced = controller(observed(**away, told=told), late, policy).actions
    assert [action.instance for action in replaced if isinstance(action, Replace)] == ["a"]


# -- the holder of the election -------------------------------------------------------------------


def test_new_code_is_a_change_that_is_agreed_on() -> None:
    assert holder(seen(OLD, ROUND), NOW, new_id).actions == ()
    (proposal,) = holder(seen(NEW, ROUND), NOW, new_id).actions
    assert isinstance(proposal, WriteProposal)


def test_a_round_names_the_code_that_it_runs() -> None:
    first = replace(seen(NEW, ROUND), round=None)
    written = [a for a in holder(first, NOW, new_id).actions if isinstance(a, WriteRound)]
    assert [action.round.code for action in written] == ["new"]


# -- the agent -----------------------------------------------------------------------------------


def local(workers: bool, *said: str) -> NodeState:
    running = Workers("r3", 3, 0, 1, NOW, frozenset({"r3/0"}), attached=True) if workers else None
    return node_state(
        node=NODE,
        fingerprint=NODE.fingerprint,
        zygote=True,
        daemon=NODE.daemon,
        registered=True,
        workers=running,
        said=frozenset(said),
    )


def test_an_agent_with_old_code_says_so_and_asks_to_be_started_again() -> None:
    proposed = replace(ROUND, number=4, incarnation="r4", phase="proposed", cause="settings")
    view = seen(NEW, proposed)
    assert agent(local(False), view, NOW, new_id).actions == (do.TellRestart(),)
    (left,) = agent(local(False, RESTARTED), view, NOW, new_id).actions
    assert isinstance(left, do.Exit)
    assert left.code == RESTART


def test_it_does_not_leave_while_its_workers_train() -> None:
    actions = agent(local(True), seen(NEW, ROUND), NOW, new_id).actions
    assert not any(isinstance(action, do.TellRestart | do.Exit) for action in actions)


# -- what makes other code -------------------------------------------------------------------------


def test_the_release_is_another_when_workers_would_start_from_something_else() -> None:
    spec = JobSpec("demo", "demo", "train.py", ("--lr", "1"), "abc", Settings(1, 2), "s3://b", ())
    environment = Environment("pip", "requirements.txt", "key")
    others = (
        replace(spec, code="abd"),
        replace(spec, script="other.py"),
        replace(spec, args=("--lr", "2")),
        replace(spec, environment=environment),
        replace(spec, setup="true"),
        replace(spec, env={"A": "1"}),
        replace(spec, secrets={"KEY": 2}),
        replace(spec, settings=Settings(1, 2, workers=2)),
    )
    releases = {spec.release, *(other.release for other in others)}
    assert len(releases) == len(others) + 1
    same = replace(spec, settings=Settings(2, 5), created_at=7.0, instance_types=("m5.large",))
    assert same.release == spec.release


def test_a_restart_is_counted_by_its_incarnation() -> None:
    from spotelastic.controller.model.observation import account

    event = Event(NOW, "restart", "a starts again", "a", {"incarnation": "inc-a"})
    assert account(event) == ("restart", "a", "::inc-a")
