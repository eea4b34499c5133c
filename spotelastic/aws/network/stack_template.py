"""Reads the CloudFormation template, with tags of the user's own where the stack's do not reach."""

import json
import re
from collections.abc import Mapping

from spotelastic.aws.base.infra_files import infra

_MORE = re.compile(r"^( *)# own tags\n", re.M)
"""Where tags end of something that launch templates make, or of a launch template."""
_OF_A_KIND = re.compile(r"^( *)# own tags of (\S+)\n", re.M)
"""Where a kind of resource stands that has no other tags; a list of no tags is refused."""


def stack_template(tags: Mapping[str, str]) -> str:
    """Return the template's text."""
    text = infra("cluster.yaml").read_text()
    lines = [f"- {{Key: {json.dumps(k)}, Value: {json.dumps(v)}}}\n" for k, v in tags.items()]

    def items(indent: str) -> str:
        return "".join(indent + line for line in lines)

    def kind(found: re.Match[str]) -> str:
        indent = found[1]
        if not lines:
            return ""
        return f"{indent}- ResourceType: {found[2]}\n{indent}  Tags:\n{items(indent + '    ')}"

    return _OF_A_KIND.sub(kind, _MORE.sub(lambda found: items(found[1]), text))
