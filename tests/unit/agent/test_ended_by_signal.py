"""What is told of a worker that a signal ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from spotelastic.agent.workers.logs import Logs
from spotelastic.agent.workers.trouble import by_signal, main_thread

SHAPES = """
import faulthandler, sys
import torch, torch.distributed as dist

rank, store = int(sys.argv[1]), sys.argv[2]
faulthandler.enable(open(f"{store}.{rank}", "w"))
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
print("goes on", file=sys.stderr, flush=True)
dist.all_reduce(torch.ones(40_000 if rank else 4))
"""


def test_ranks_that_pass_different_shapes_are_told_so(tmp_path: Path) -> None:
    """With the text of the gloo that is installed, and the frame in which the script was."""
    script, store = tmp_path / "shapes.py", tmp_path / "store"
    script.write_text(SHAPES)
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(store)], stderr=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    written = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert ranks[0].returncode == -signal.SIGABRT
    stack = main_thread(Path(f"{store}.0").read_text())
    assert f'File "{script}", line 9 in <module>' in stack
    dump = Path(f"{store}.0").read_text()
    told, whole = by_signal(ranks[0].returncode, written[0], dump, tmp_path)
    assert told.startswith("ended by SIGABRT at shapes.py:9 in <module>")
    assert ": ranks passed different" in told
    assert told.endswith("bytes came where 4 were expected")
    assert stack in whole and "\n  goes on\n" in whole and whole.endswith(told)


def test_another_abort_is_told_in_its_own_words() -> None:
    written = (
        "terminate called after throwing an instance of 'std::runtime_error'\n  what():  odd\n"
    )
    here = Path("/x")
    assert by_signal(-6, written, "", here)[0] == "ended by SIGABRT: odd"
    dump = 'Thread 0x01 (most recent call first):\n  File "/x/a.py", line 3 in f\n'
    assert by_signal(-11, written, dump, here)[0] == "ended by SIGSEGV at a.py:3 in f"
    assert by_signal(-6, "free(): invalid pointer\n", "", here)[0] == "ended by SIGABRT"


def test_the_frames_are_those_of_the_script() -> None:
    dump = (
        "Fatal Python error: Aborted\n\nThread 0x01 (most recent call first):\n"
        '  File "/x/queue.py", line 1 in get\n\nThread 0x02 (most recent call first):\n'
        '  File "/x/train.py", line 7 in step\n'
        '  File "/y/spotelastic/agent/workers/entries.py", line 42 in run\n'
        '  File "<string>", line 9 in <module>\n\nExtension modules: numpy (total: 1)\n'
    )
    found = main_thread(dump)
    assert found.splitlines()[1:] == ['  File "/x/train.py", line 7 in step']
    current = dump.replace("Thread 0x01", "Current thread 0x01")
    assert main_thread(current).splitlines()[1:] == ['  File "/x/queue.py", line 1 in get']
    assert main_thread("") == ""


def test_what_a_worker_has_written_is_in_its_file_once_the_reader_has_caught_up(
    tmp_path: Path,
) -> None:
    logs = Logs(lambda *_: None)
    (fd,) = logs.open(tmp_path, 3, 0)
    with os.fdopen(fd, "wb", buffering=0) as pipe:
        for number in range(200):
            pipe.write(b"%d\n" % number)
            logs.catch_up()
            assert logs.path(tmp_path, 3, 0).read_bytes().endswith(b"\n%d\n" % number) or not number
    logs.close()
