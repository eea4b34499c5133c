"""Makes AWS calls fail, for good or a number of times."""

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
