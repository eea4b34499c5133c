"""Collects what a run on a real account shows, in one file that can be pasted into an issue."""

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spotelastic.aws.base.account import default_bucket
from spotelastic.aws.base.clients import Aws
from spotelastic.clock import steady, wall
from spotelastic.redaction import redactor, without_known_formats
from spotelastic.version import __version__

Gather = Callable[[], Any]
"""Looks up something that may explain a failure."""


class Evidence:
    """The facts and checks of one stage. Each is written to the file at once.

    Checks are soft: a failure is noted with its evidence, the stage goes on, and `finish` fails.
    """

    def __init__(self, file: Path, stage: str, secrets: tuple[str, ...] = ()) -> None:
        self._file = file
        self._redact = redactor(secrets)
        self._began = steady()
        self._stage: dict[str, Any] = {"began": wall(), "facts": {}, "checks": {}}
        known = json.loads(file.read_text()) if file.exists() else {}
        stages = {**known.get("stages", {}), stage: self._stage}
        self._whole = {"spotelastic": __version__, "python": sys.version, "stages": stages}

    def fact(self, name: str, value: Any) -> None:
        """Notes something that was seen, whatever it means."""
        self._stage["facts"][name] = {"value": value, "after_s": self._after()}
        self._write()

    @contextmanager
    def check(self, name: str, **gather: Gather) -> Iterator[None]:
        """What fails in the block is noted, with what `gather` finds out about it."""
        note: dict[str, Any] = {"result": "passed"}
        began = steady()
        try:
            yield
        except NotImplementedError as error:
            note = {"result": "not there", "why": str(error)}
        except Exception as error:
            found = {key: looked(look) for key, look in gather.items()}
            why = "".join(traceback.format_exception(error, limit=-3))
            note = {"result": "FAILED", "why": why, "evidence": found}
        took = {"after_s": self._after(), "took_s": round(steady() - began, 1)}
        self._stage["checks"][name] = {**note, **took}
        self._write()
        print(f"  {note['result']:9} {name}", flush=True)

    def results(self) -> Mapping[str, str]:
        """Each check of the stage so far: passed, FAILED or not there."""
        return {name: each["result"] for name, each in self._stage["checks"].items()}

    def finish(self) -> None:
        """Fails if a check did."""
        failed = [name for name, result in self.results().items() if result == "FAILED"]
        assert not failed, f"{', '.join(failed)}: see {self._file}"

    def _after(self) -> float:
        return round(steady() - self._began, 1)

    def _write(self) -> None:
        text = json.dumps(self._whole, indent=1, default=str)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        beside = self._file.with_suffix(".new")
        beside.write_text(without_known_formats(self._redact(text)))
        beside.replace(self._file)


def looked(look: Gather) -> Any:
    """Return what is found out, or why it could not be."""
    try:
        return look()
    except Exception as error:
        return f"could not be looked up: {error}"


def about_stack(aws: Aws, stack: str) -> Gather:
    """The newest events of a stack."""

    def look() -> list[str]:
        events = aws.cloudformation.describe_stack_events(StackName=stack)["StackEvents"]
        names = ("Timestamp", "LogicalResourceId", "ResourceStatus", "ResourceStatusReason")
        return [" ".join(str(event.get(name, "")) for name in names) for event in events[:60]]

    return look


def about_group(aws: Aws, group: str) -> Gather:
    """The newest activities of an Auto Scaling group."""

    def look() -> list[str]:
        found = aws.autoscaling.describe_scaling_activities(AutoScalingGroupName=group)
        names = ("StartTime", "StatusCode", "Description", "StatusMessage")
        return [
            " ".join(str(each.get(name, "")) for name in names) for each in found["Activities"][:30]
        ]

    return look


def about_console(aws: Aws, instance: str) -> Gather:
    """The end of an instance's console."""

    def look() -> str:
        output = aws.ec2.get_console_output(InstanceId=instance, Latest=True).get("Output", "")
        return str(output)[-8000:]

    return look


def about_bucket(aws: Aws, prefix: str) -> Gather:
    """The names of a cluster's objects."""

    def look() -> list[str]:
        found = aws.s3.list_objects_v2(Bucket=default_bucket(aws), Prefix=prefix, MaxKeys=200)
        return [f"{each['Key']} {each['Size']}" for each in found.get("Contents", ())]

    return look
