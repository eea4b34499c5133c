"""IAM's simulator, which moto lacks: what a role's policies permit, by the local cloud's own
evaluation."""

import json
from typing import Any

import pytest
from moto.core.responses import ActionResult
from moto.iam.models import iam_backends
from moto.iam.responses import IamResponse
from support.strict.evaluation import AccessRequest, Resource, permits

TAG = "aws:ResourceTag/"


def install(patch: pytest.MonkeyPatch) -> None:
    """Add it to the account of this process."""
    patch.setattr(IamResponse, "simulate_principal_policy", simulate, raising=False)


def simulate(response: Any) -> ActionResult:
    policies = policies_of(response.current_account, response._get_param("PolicySourceArn"))
    context = {
        each["ContextKeyName"]: each["ContextKeyValues"][0]
        for each in response._get_param("ContextEntries", [])
    }
    tags = {k.removeprefix(TAG): value for k, value in context.items() if k.startswith(TAG)}
    things = tuple(Resource(each, tags) for each in response._get_param("ResourceArns"))
    results = [
        {
            "EvalActionName": action,
            "EvalDecision": "allowed"
            if permits(policies, AccessRequest(action, things, context))
            else "implicitDeny",
        }
        for action in response._get_param("ActionNames")
    ]
    return ActionResult({"EvaluationResults": results})


def policies_of(account: str, arn: str) -> list[Any]:
    roles = iam_backends[account]["aws"].roles.values()
    (role,) = (each for each in roles if each.arn == arn)
    return [json.loads(each) if isinstance(each, str) else each for each in role.policies.values()]
