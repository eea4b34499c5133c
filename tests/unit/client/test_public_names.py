"""The names that `import spotelastic` gives, and those that it had before."""

import builtins
import importlib
import warnings
from types import ModuleType

import pytest

import spotelastic
from spotelastic import client, dcp, errors, parameter_server

FORMER = {
    "CheckpointReader": dcp,
    "CheckpointWriter": dcp,
    "JobFailed": errors,
    "WorkerFailed": errors,
}
"""What 0.1.0 had at the top, with the modules that have it now."""


@pytest.fixture
def package() -> ModuleType:
    """The package as a new process has it, which has told nothing yet."""
    return importlib.reload(spotelastic)


def test_few_names_are_listed_and_each_is_there(package: ModuleType) -> None:
    assert len(package.__all__) <= 9
    assert set(package.__all__) <= set(dir(package))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for module in (package, client, dcp, parameter_server):
            for name in getattr(module, "__all__", dir(module)):
                assert getattr(module, name) is not None


def test_no_name_is_a_builtin_of_python() -> None:
    for module in (spotelastic, client, dcp, parameter_server):
        offered = {name for name in dir(module) if not name.startswith("_")}
        assert offered & set(dir(builtins)) == set()


@pytest.mark.parametrize("name", FORMER)
def test_a_former_name_is_the_same_thing_and_says_once_where_it_is(
    name: str, package: ModuleType
) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = [getattr(package, name) for _ in range(3)]
    assert {*found} == {getattr(FORMER[name], name)}
    where = f"{FORMER[name].__name__}.{name}"
    assert [str(each.message) for each in told] == [f"spotelastic.{name} is now {where}"]
    assert told[0].filename == __file__
    assert name not in package.__all__


@pytest.mark.parametrize("module", [spotelastic, client, dcp, parameter_server])
def test_what_is_not_there_is_no_attribute(module: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'Nope'"):
        _ = module.Nope
