"""Threads that meet a type for the first time at once each get its value, and nothing crashes."""

import ast
import subprocess
import sys
from pathlib import Path

from support.processes.patience import PATIENT

ROOT = Path(__file__).parents[3]

PROGRAM = """
import sys, threading, types
from dataclasses import dataclass
from spotelastic_checkpoints.decoders import from_json, from_msgpack
import msgspec

SOURCE = '''
@dataclass(frozen=True, slots=True)
class Inner:
    a: int
    b: str
    c: float = 0.0

@dataclass(frozen=True, slots=True)
class Outer:
    x: Inner
    y: tuple[Inner, ...] = ()
    z: str = ""
'''
sys.setswitchinterval(1e-6)
told = {"x": {"a": 1, "b": "q", "c": 2.5}, "y": [{"a": 1, "b": "q"}], "z": "t"}
ways = [(from_json, msgspec.json.encode(told)), (from_msgpack, msgspec.msgpack.encode(told))]
for number in range(60):
    module = types.ModuleType(f"m{number}")
    sys.modules[module.__name__] = module
    module.__dict__.update(dataclass=dataclass)
    exec(SOURCE, module.__dict__)
    barrier, found = threading.Barrier(8), []

    def decode(index):
        barrier.wait()
        way, data = ways[index % 2]
        found.append(way(data, module.Outer))

    threads = [threading.Thread(target=decode, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [found[0]] * 8 and found[0].x.c == 2.5, found
"""


def test_threads_that_meet_a_type_for_the_first_time_at_once_get_its_value() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=PATIENT,
        check=False,
    )
    assert done.returncode == 0, done.stderr


PLAIN = {"kept_logs.py": "a tuple of an int and a string has no dataclass in it"}


def test_the_product_decodes_dataclasses_with_these_alone() -> None:
    calls = []
    for folder in ("spotelastic", "checkpoints/spotelastic_checkpoints"):
        for file in (ROOT / folder).rglob("*.py"):
            for call in ast.walk(ast.parse(file.read_text())):
                if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("msgspec."):
                    typed = any(keyword.arg == "type" for keyword in call.keywords)
                    calls += [file.name] if typed else []
    assert sorted(calls) == sorted(PLAIN)
