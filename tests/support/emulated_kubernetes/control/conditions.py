"""The conditions of an object's status (pure)."""

from typing import Any

Object = dict[str, Any]


def with_condition(
    status: Object, type: str, holds: bool, now: str, reason: str = "", message: str = ""
) -> Object:
    """Return a status with that condition; its time changes only with its value."""
    word = "True" if holds else "False"
    others = [each for each in status.get("conditions", ()) if each["type"] != type]
    before: Object = next(
        (each for each in status.get("conditions", ()) if each["type"] == type), {}
    )
    since = before.get("lastTransitionTime", now) if before.get("status") == word else now
    made: Object = {"type": type, "status": word, "lastTransitionTime": since}
    made |= {"reason": reason} if reason else {}
    made |= {"message": message} if message else {}
    return {**status, "conditions": [*others, made]}


def condition(status: Object, type: str) -> str:
    """Return the value of a condition: True, False, or "" if there is none."""
    found = (each["status"] for each in status.get("conditions", ()) if each["type"] == type)
    return str(next(found, ""))
