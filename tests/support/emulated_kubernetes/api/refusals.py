"""Refusals of the API server, as Kubernetes words them."""

from typing import Any


class ApiError(Exception):
    """A request is refused: `code` is the HTTP status, `reason` is Kubernetes' word for why."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    def status(self) -> dict[str, Any]:
        """Return the object that a client is answered."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


def not_found(what: str) -> ApiError:
    """Return the refusal for an object or a path that there is not."""
    return ApiError(404, "NotFound", f"{what} not found")


def exists_already(what: str) -> ApiError:
    """Return the refusal for an object that there is already."""
    return ApiError(409, "AlreadyExists", f"{what} already exists")


def conflict(what: str, why: str) -> ApiError:
    """Return the refusal for a change of something that has changed meanwhile."""
    return ApiError(409, "Conflict", f"Operation cannot be fulfilled on {what}: {why}")


def invalid(what: str, why: str) -> ApiError:
    """Return the refusal for an object that cannot be as it is given."""
    return ApiError(422, "Invalid", f"{what} is invalid: {why}")


def is_ending(what: str, namespace: str) -> ApiError:
    """Return the refusal for a new object in a namespace that was deleted."""
    why = f"unable to create new content in namespace {namespace} because it is being terminated"
    return ApiError(403, "Forbidden", f"{what} is forbidden: {why}")


def bad_request(why: str) -> ApiError:
    """Return the refusal for a request that cannot be understood."""
    return ApiError(400, "BadRequest", why)


def expired(version: int) -> ApiError:
    """Return the refusal for a watch from a version whose changes are no longer kept."""
    return ApiError(410, "Expired", f"too old resource version: {version}")
