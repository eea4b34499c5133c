"""Makes AWS calls fail or answer nothing, for good or a number of times."""

from types import SimpleNamespace
from typing import Any


def refuse(
    client: Any,
    operation: str,
    code: str,
    message: str = "no",
    *,
    times: float = float("inf"),
    status: int = 400,
) -> list[Any]:
    """Of the operation of a boto3 client; what has been asked, refused or not, so far."""
    asked: list[Any] = []

    def before(model: Any, params: Any, **_: Any) -> Any:
        if model.name != operation:
            return None
        asked.append(params)
        if len(asked) > times:
            return None
        answer = {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
        }
        return SimpleNamespace(status_code=status), answer

    client.meta.events.register("before-call", before)
    return asked


def show_nothing(client: Any, operation: str, answer: dict[str, Any], *, times: int) -> list[Any]:
    """Of the operation: it answers as before anything was made, so many times."""
    asked: list[Any] = []

    def before(model: Any, params: Any, **_: Any) -> Any:
        if model.name != operation:
            return None
        asked.append(params)
        empty = {**answer, "ResponseMetadata": {"HTTPStatusCode": 200}}
        return (SimpleNamespace(status_code=200), empty) if len(asked) <= times else None

    client.meta.events.register("before-call", before)
    return asked
