"""Runs `spotelastic ckpt`, or another command, inside the test's process.

A new one would import torch for seconds.
"""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest

from spotelastic.cli.main import main


@dataclass
class Done:
    code: int
    out: str
    err: str


def ckpt(*args: object) -> Done:
    return spotelastic("ckpt", *args)


def spotelastic(*args: object) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["spotelastic", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
    return Done(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def fine(*args: object) -> str:
    done = ckpt(*args)
    assert (done.code, done.err) == (0, "")
    return done.out


def refused(*args: object) -> str:
    done = ckpt(*args)
    assert done.code == 2 and not done.out
    assert done.err.count("\n") == 1, done.err
    return done.err
