"""What a pod's container is given (pure): its command, its variables and its files."""

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from support.emulated_kubernetes.api.kinds import CONFIG_MAPS, SECRETS, ObjectKind

Object = dict[str, Any]
Find = Callable[[ObjectKind, str], Object | None]
"""Returns an object of the pod's namespace by kind and name, or None."""


class MissingReference(Exception):
    """A pod names a Secret, a ConfigMap or a key that there is not (yet)."""


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """How a container is started."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str
    mounts: tuple[tuple[str, str, str], ...]
    """The volume, a path within it, and where it is mounted."""


def settings(
    container: Object, pod: Object, services: Mapping[str, str], find: Find
) -> ContainerSettings:
    """Return how a container is started. `services` are variables that each container has.

    Raises `MissingReference`.
    """
    env = dict(services)
    for source in container.get("envFrom", ()):
        env |= _env_from(source, find)
    for each in container.get("env", ()):
        value = _value(each, pod, container, find)
        if value is not None:
            env[each["name"]] = _expanded(value, env)
    words = [*container.get("command", ()), *container.get("args", ())]
    return ContainerSettings(
        argv=tuple(_expanded(str(word), env) for word in words),
        env=env,
        workdir=container.get("workingDir") or "",
        mounts=tuple(
            (each["name"], each.get("subPath", ""), each["mountPath"])
            for each in container.get("volumeMounts", ())
        ),
    )


def files_of(volume: Object, pod: Object, find: Find) -> dict[str, bytes] | None:
    """Return the files of a volume by their paths; None for a volume that is not made of files.

    Raises `MissingReference`.
    """
    if "projected" in volume:
        found: dict[str, bytes] = {}
        for source in volume["projected"]["sources"]:
            found |= files_of(source, pod, find) or {}
        return found
    if "downwardAPI" in volume:
        items = volume["downwardAPI"].get("items", ())
        return {
            each["path"]: _field(pod, each["fieldRef"]["fieldPath"]).encode()
            for each in items
            if "fieldRef" in each
        }
    for word, kind in (("secret", SECRETS), ("configMap", CONFIG_MAPS)):
        if word in volume:
            asked = volume[word]
            name = asked.get("secretName") or asked.get("name")
            data = _data(kind, name, find, optional=bool(asked.get("optional")))
            if "items" not in asked:
                return data
            return {
                each["path"]: _key(data, kind, name, each["key"])
                for each in asked["items"]
                if each["key"] in data or not asked.get("optional")
            }
    return None


# -- values ---------------------------------------------------------------------------------------


def _value(each: Object, pod: Object, container: Object, find: Find) -> str | None:
    source = each.get("valueFrom")
    if source is None:
        return str(each.get("value", ""))
    if "fieldRef" in source:
        return _field(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return _resource(container, source["resourceFieldRef"]["resource"])
    for word, kind in (("secretKeyRef", SECRETS), ("configMapKeyRef", CONFIG_MAPS)):
        if word in source:
            asked = source[word]
            optional = bool(asked.get("optional"))
            data = _data(kind, asked["name"], find, optional=optional)
            if optional and asked["key"] not in data:
                return None
            return _key(data, kind, asked["name"], asked["key"]).decode()
    raise MissingReference(f"the variable {each['name']} has a source that is not emulated")


def _env_from(source: Object, find: Find) -> dict[str, str]:
    for word, kind in (("secretRef", SECRETS), ("configMapRef", CONFIG_MAPS)):
        if word in source:
            asked = source[word]
            data = _data(kind, asked["name"], find, optional=bool(asked.get("optional")))
            prefix = source.get("prefix", "")
            return {f"{prefix}{name}": value.decode() for name, value in data.items()}
    return {}


def _data(kind: ObjectKind, name: str, find: Find, *, optional: bool) -> dict[str, bytes]:
    found = find(kind, name)
    if found is None:
        if optional:
            return {}
        raise MissingReference(f'{kind.name.lower()} "{name}" not found')
    if kind is SECRETS:
        data = {key: base64.b64decode(text) for key, text in (found.get("data") or {}).items()}
        plain = found.get("stringData") or {}
    else:
        binary = found.get("binaryData") or {}
        data = {key: base64.b64decode(text) for key, text in binary.items()}
        plain = found.get("data") or {}
    return data | {key: text.encode() for key, text in plain.items()}


def _key(data: Mapping[str, bytes], kind: ObjectKind, name: str, key: str) -> bytes:
    if key not in data:
        raise MissingReference(f'couldn\'t find key "{key}" in {kind.name} "{name}"')
    return data[key]


def _field(pod: Object, path: str) -> str:
    """Return a field of the pod for the downward API."""
    if found := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return str(pod["metadata"].get(found[1], {}).get(found[2], ""))
    value: Any = pod
    for word in path.split("."):
        value = value.get(word, "") if isinstance(value, Mapping) else ""
    if isinstance(value, Mapping):
        return "\n".join(f'{key}="{text}"' for key, text in value.items())
    return str(value)


def _resource(container: Object, path: str) -> str:
    """Return a limit or request of the container in whole units: bytes, or cores."""
    kind, _, name = path.partition(".")
    text = str(container.get("resources", {}).get(kind, {}).get(name, "0"))
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(m|[KMGT]i?)?", text)
    if found is None:
        return text
    number, unit = float(found[1]), found[2] or ""
    if unit == "m":
        return str(-(-int(number) // 1000))
    base = 1024 if unit.endswith("i") else 1000
    return str(int(number * base ** " KMGT".index(unit[0]) if unit else number))


def _expanded(text: str, env: Mapping[str, str]) -> str:
    """Return a text with `$(NAME)` replaced by the variable, if there is one, and `$$` by `$`."""

    def replaced(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else env.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^()]*)\)", replaced, text)
