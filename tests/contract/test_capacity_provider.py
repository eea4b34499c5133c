"""What the controller relies on, wherever nodes come from: the contract of `cloud/port.py`.

Run on the provider in memory, on plain processes, on AWS's adapters over the local cloud's AWS, and
on those of Kubernetes over an emulated cluster; by `make test-aws` on AWS itself. A new provider
adds itself to `PROVIDERS`, and says there what it has no counterpart of.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.clusters.cloud_providers import (
    ProvidedCloud,
    aws_cloud,
    kubernetes_cloud,
    memory_cloud,
    moto_cloud,
    process_cloud,
)
from support.clusters.local_cloud import until
from support.processes.patience import PATIENT

from spotelastic.cloud.bucket import JOB
from spotelastic.cloud.events import ScheduledChange, SpotWarning, StateChange
from spotelastic.cloud.model import ALIVE, GONE, Instance
from spotelastic.cloud.port import Delivery, MessageQueue
from spotelastic.model.job import JobSpec, Settings
from spotelastic.model.requests.command import Command

PROVIDERS: dict[str, Callable[[Path], AbstractContextManager[ProvidedCloud]]] = {
    "memory": lambda _: memory_cloud(),
    "processes": lambda _: process_cloud(),
    "moto": moto_cloud,
    "kubernetes": lambda _: kubernetes_cloud(),
    "aws": lambda _: aws_cloud(),
}
MARKS = {"aws": [pytest.mark.aws], "kubernetes": [pytest.mark.soak]}
NOBODY = "i-0123456789abcdef0"
"""An instance that there never was."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=MARKS.get(name, ())) for name in PROVIDERS],
)
def its(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProvidedCloud]:
    with PROVIDERS[request.param](tmp_path_factory.mktemp("cloud")) as provided:
        yield provided


@pytest.fixture(autouse=True)
def no_process_outlives_its_test(its: ProvidedCloud) -> Iterator[None]:
    yield
    if its.are_processes:
        for group in its.cloud.provider.groups():
            its.cloud.provider.set_desired(group, 0)
        its.cloud.provider.end([each.id for each in its.cloud.provider.instances()])
        until(lambda: all(each.state in GONE for each in its.cloud.provider.instances()), PATIENT)


def instance(its: ProvidedCloud, name: str) -> Instance:
    return next(each for each in its.cloud.provider.instances() if each.id == name)


def runs(its: ProvidedCloud, name: str) -> bool:
    return instance(its, name).state == "running"


def is_gone(its: ProvidedCloud, name: str) -> bool:
    found = [each.state for each in its.cloud.provider.instances() if each.id == name]
    return not found or found[0] in GONE


def received(queue: MessageQueue[Any], wanted: Callable[[Delivery[Any]], bool]) -> Delivery[Any]:
    """The message that is wanted; others are deleted."""
    found: list[Delivery[Any]] = []

    def look() -> bool:
        for each in queue.receive(1):
            if wanted(each):
                found.append(each)
            else:
                queue.delete(each.receipt)
        return bool(found)

    until(look, PATIENT)
    return found[0]


# -- groups and instances -----------------------------------------------------------------------


def test_a_group_launches_what_it_lacks(its: ProvidedCloud) -> None:
    provider = its.cloud.provider
    names = its.sized(2)
    group = its.group()
    assert (group.name, group.desired, group.staying, group.asked) == (
        provider.names.spot, 2, 2, 0,
    )  # fmt: skip
    assert group.subnets and set(group.subnets) <= set(group.offered)
    zones = {zone.name for zone in provider.zones(group.subnets)}
    for name in names:
        until(partial(runs, its, name), PATIENT)
        found = instance(its, name)
        assert (found.role, found.spot) == ("worker", True)
        assert found.zone in zones or "zones" in its.lacks
        assert found.launched_at > 1e9


def test_both_groups_are_there_and_independent(its: ProvidedCloud) -> None:
    provider, names = its.cloud.provider, its.cloud.provider.names
    spot = its.sized(1)
    assert set(provider.groups()) == {names.spot, names.on_demand}
    provider.set_desired(names.on_demand, 1)
    until(lambda: len(its.staying(spot=False)) == 1, PATIENT)
    (name,) = its.staying(spot=False)
    assert not instance(its, name).spot
    provider.remove(name)
    provider.complete_drain(names.on_demand, name)
    until(lambda: is_gone(its, name), PATIENT)
    assert its.staying() == spot


def test_a_replaced_instance_drains_while_another_one_is_launched(its: ProvidedCloud) -> None:
    provider, before = its.cloud.provider, its.sized(2)
    victim = min(before)
    provider.replace(victim)
    provider.replace(victim)  # again is no error, and replaces nothing else
    until(lambda: len(its.staying() - {victim}) == 2, PATIENT)
    member = its.group().member(victim)
    assert member is not None and member.leaving
    assert instance(its, victim).state in ALIVE, "it drains first"
    assert its.staying() >= before - {victim}
    provider.complete_drain(its.group().name, victim)
    provider.complete_drain(its.group().name, victim)
    until(lambda: its.group().member(victim) is None and is_gone(its, victim), PATIENT)
    assert (its.group().desired, len(its.staying())) == (2, 2)


def test_a_removed_instance_makes_its_group_smaller_and_the_others_stay(
    its: ProvidedCloud,
) -> None:
    provider, before = its.cloud.provider, its.sized(3)
    victim = sorted(before)[1]
    provider.remove(victim)
    assert (its.group().desired, its.staying()) == (2, before - {victim})
    provider.complete_drain(its.group().name, victim)
    until(lambda: is_gone(its, victim), PATIENT)
    assert its.staying() == before - {victim}


def test_a_smaller_group_lets_as_many_go_as_it_has_too_many(its: ProvidedCloud) -> None:
    provider, before = its.cloud.provider, its.sized(3)
    name = its.group().name
    provider.set_desired(name, 1)
    provider.set_desired(name, 1)
    until(lambda: len(its.staying()) == 1, PATIENT)
    (left,) = its.staying()
    assert left in before
    assert {each.instance for each in its.group().members if each.leaving} == before - {left}
    provider.complete_drain(name, left)
    assert its.staying() == {left}, "it has nothing to complete"
    for gone in before - {left}:
        provider.end((gone,))
        until(partial(is_gone, its, gone), PATIENT)
    assert (its.group().desired, its.staying()) == (1, {left})


def test_an_instance_that_is_ended_is_gone_at_once_and_its_group_launches_another(
    its: ProvidedCloud,
) -> None:
    provider, before = its.cloud.provider, its.sized(2)
    victim = min(before)
    provider.end((victim,))
    provider.end((victim,))
    provider.end(())
    until(lambda: is_gone(its, victim), PATIENT)
    until(lambda: len(its.staying() - {victim}) == 2, PATIENT)
    told = received(
        its.cloud.events,
        lambda each: (
            isinstance(each.content, StateChange)
            and each.content.instance == victim
            and each.content.state == "terminated"
        ),
    )
    its.cloud.events.delete(told.receipt)


def test_who_never_was_can_be_told_to_go(its: ProvidedCloud) -> None:
    provider, before = its.cloud.provider, its.sized(1)
    provider.replace(NOBODY)
    provider.remove(NOBODY)
    provider.complete_drain(its.group().name, NOBODY)
    provider.end((NOBODY,))
    assert (its.group().desired, its.staying()) == (1, before)


def test_a_group_launches_in_the_subnets_that_it_is_given(its: ProvidedCloud) -> None:
    its.needs("zones")
    provider, group = its.cloud.provider, its.group()
    zones = provider.zones(group.offered)
    assert len(zones) > 1
    assert sorted(subnet for zone in zones for subnet in zone.subnets) == sorted(group.offered)
    (old,) = its.sized(1)
    other = next(zone for zone in zones if zone.name != instance(its, old).zone)
    provider.set_subnets(group.name, other.subnets)
    assert its.group().subnets == other.subnets
    provider.set_desired(group.name, 2)
    until(lambda: len(its.staying()) == 2, PATIENT)
    (new,) = its.staying() - {old}
    until(lambda: instance(its, new).zone == other.name, PATIENT)
    assert not is_gone(its, old)
    provider.set_subnets(group.name, group.subnets)


def test_offers_keep_the_zones_and_add_what_is_known_of_each(its: ProvidedCloud) -> None:
    provider = its.cloud.provider
    zones = provider.zones(its.group().offered)
    offers = provider.offers(zones, its.types, 2)
    assert tuple(replace(each, usd=0.0, score=0) for each in offers) == zones
    assert all(each.usd > 0 for each in offers) or "prices" in its.lacks
    quotas = provider.quotas(its.types)
    assert all(isinstance(each, str) for each in (quotas.spot, quotas.on_demand, quotas.control))


def test_launches_may_be_resumed_at_any_time(its: ProvidedCloud) -> None:
    its.sized(1)
    its.cloud.provider.resume(its.group().name)
    assert not its.group().suspended
    assert isinstance(its.cloud.provider.console(min(its.staying())), str)


def test_groups_that_nobody_looks_after_are_emptied(its: ProvidedCloud) -> None:
    provider = its.cloud.provider
    its.sized(1)
    provider.postpone(time.time() + 3600.0)
    assert its.group().desired == 1
    provider.postpone(time.time() + 1.0)
    until(lambda: its.group().desired == 0 and not its.staying(), PATIENT)
    its.made_again()
    provider.postpone(time.time() + 3600.0)
    assert len(its.sized(1)) == 1, "a controller that comes back goes on"


def test_prices_are_known(its: ProvidedCloud) -> None:
    its.needs("prices")
    prices, zone = its.cloud.prices, its.cloud.provider.zones(its.group().offered)[0].name
    assert 0 < prices.spot(its.types[0], zone) <= prices.on_demand(its.types[0])
    assert min(prices.besides("worker", public=True), prices.network(0)) >= 0
    assert isinstance(prices.date, str)


# -- messages ------------------------------------------------------------------------------------


def warns(name: str) -> Callable[[Delivery[Any]], bool]:
    return lambda each: isinstance(each.content, SpotWarning) and each.content.instance == name


def test_a_warning_comes_until_it_is_deleted(its: ProvidedCloud) -> None:
    events = its.cloud.events
    its.warn("i-warned")
    first = received(events, warns("i-warned"))
    assert isinstance(first.content, SpotWarning) and first.content.ahead > 0
    again = received(events, warns("i-warned"))
    assert (again.id, again.content) == (first.id, first.content)
    assert again.receipt != first.receipt
    events.hand_back(again.receipt)
    last = received(events, warns("i-warned"))
    assert last.id == first.id
    events.delete(last.receipt)
    events.delete(last.receipt)
    events.hand_back(last.receipt)
    its.warn("i-other")
    other = received(events, lambda each: isinstance(each.content, SpotWarning))
    assert warns("i-other")(other), "the first one does not come again"
    events.delete(other.receipt)


def test_what_is_announced_comes_with_its_time(its: ProvidedCloud) -> None:
    its.needs("announcements")
    begins = 2_000_000_000.0
    its.announce("i-maintained", begins)
    delivery = received(its.cloud.events, lambda each: isinstance(each.content, ScheduledChange))
    change = delivery.content
    assert isinstance(change, ScheduledChange)
    assert (change.instances, change.begins, change.called_off) == (
        ("i-maintained",), begins, False,
    )  # fmt: skip
    assert change.change, "so that its end can be told from that of others"
    its.cloud.events.delete(delivery.receipt)


def test_nothing_is_waited_for_longer_than_asked(its: ProvidedCloud) -> None:
    until(lambda: not its.cloud.commands.receive(0), PATIENT)


def test_commands_come_with_the_time_at_which_they_were_sent(its: ProvidedCloud) -> None:
    commands, command = its.cloud.commands, Command("c1", "scale", 1, 3)
    before = time.time()
    its.junk()
    its.send(command)
    found: dict[Command | None, Delivery[Any]] = {}

    def look() -> bool:
        for each in commands.receive(1):
            found[each.content] = each
            commands.delete(each.receipt)
        return len(found) == 2

    until(look, PATIENT)
    assert set(found) == {None, command}
    assert abs(found[command].sent_at - before) < PATIENT


# -- objects -------------------------------------------------------------------------------------


def test_objects_are_written_read_and_listed(its: ProvidedCloud) -> None:
    objects = its.cloud.objects
    assert (objects.get("x/none"), objects.read("x/none"), objects.has("x/none")) == (
        None, None, False,
    )  # fmt: skip
    for name in ("x/b", "x/a", "y"):
        objects.put(name, name.encode())
    assert objects.names("x/") == ("x/a", "x/b")
    assert (objects.get("x/a"), objects.has("x/a")) == (b"x/a", True)
    assert objects.url("x/a").endswith(f"{objects.cluster}/x/a")
    for _ in range(2):
        objects.delete("x/a")
    assert objects.names("x/") == ("x/b",)


def test_of_several_writers_one_succeeds(its: ProvidedCloud) -> None:
    objects = its.cloud.objects
    assert objects.create("once", b"1")
    assert not objects.create("once", b"2")
    found = objects.read("once")
    assert found is not None
    assert objects.replace("once", b"3", found[1])
    assert not objects.replace("once", b"4", found[1]), "it has another version now"
    assert objects.get("once") == b"3"
    objects.delete("once")
    assert not objects.replace("once", b"5", found[1])


def test_a_changed_job_keeps_what_another_process_writes_meanwhile(its: ProvidedCloud) -> None:
    objects = its.cloud.objects
    spec = JobSpec("demo", "run", "train.py", (), "c0de", Settings(1, 2), "s3://x/demo", ())
    kept = objects.get(JOB)
    objects.put(JOB, msgspec.json.encode(spec))
    tries: list[str] = []

    def change(found: JobSpec) -> JobSpec:
        if not tries:
            objects.put(JOB, msgspec.json.encode(replace(spec, code="new")))
        tries.append(found.code)
        return replace(found, setup="make")

    changed = objects.change_job(change)
    assert (tries, changed.code, changed.setup) == (["c0de", "new"], "new", "make")
    assert objects.job() == changed
    if kept is not None:
        objects.put(JOB, kept)


# -- the end -------------------------------------------------------------------------------------


def test_a_cluster_that_is_torn_down_has_no_groups_and_no_workers_but_its_objects(
    its: ProvidedCloud,
) -> None:
    provider, before = its.cloud.provider, its.sized(2)
    its.cloud.objects.put("kept", b"kept")
    provider.tear_down()
    until(lambda: not provider.groups(), PATIENT)
    until(lambda: all(is_gone(its, name) for name in before), PATIENT)
    assert its.cloud.objects.get("kept") == b"kept"
    provider.tear_down()
