"""What a signal does to a command that holds things."""

import signal
import subprocess
import sys

import pytest

COMMAND = """
import os, signal, sys
from spotelastic.signals import Signals
with Signals() as signals:
    try:
        os.write(3, b"ready ")
        signal.pause()
    except KeyboardInterrupt:
        os.kill(os.getpid(), signal.SIGINT)  # disturbs nobody any more
        print("undoing", flush=True)
        os.write(3, b"undone")
sys.exit(signals.exit_code)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_starts_an_undoing_that_nothing_disturbs(number: signal.Signals) -> None:
    with subprocess.Popen(
        ["/bin/sh", "-c", f'exec "{sys.executable}" -c "$0" 3>&1', COMMAND],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(6) == b"ready "
        if number == signal.SIGHUP:
            process.stderr.close()  # the terminal is gone: a write to it would fail
        process.send_signal(number)
        told = process.stdout.read()
    assert process.returncode == 128 + number
    assert told.endswith(b"undone")
    assert (b"undoing" in told) == (number != signal.SIGHUP)
