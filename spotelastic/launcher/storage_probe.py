"""Checks that a run can write to its checkpoint storage, before anything is started.

What cannot recover ends the command: an unknown URL scheme, a missing package, permission or
bucket. A storage that does not answer may recover, so the run begins.
"""

import errno
import re
import threading

from spotelastic.errors import UsageError

WITHIN = 15.0
"""Seconds to wait for the answer; then the run begins without one."""
_STAYS = {
    *(errno.EROFS, errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOSPC, errno.EDQUOT),
}
"""Errors of a folder that do not pass: a read-only or full disk, a bad path."""


def probe(url: str, owner: str, *, chosen: bool = True) -> None:
    """Write the small object that each claim looks for. `chosen`: whether --storage was given.

    Raises `UsageError`.
    """
    if re.search(r"@(\d+/)?\d+/*$", url):
        raise UsageError(
            f"--storage {url}: `ckpt` reads the part after the @ as a step; choose another name"
        )
    problems: list[str] = []
    arguments = url, owner, problems
    thread = threading.Thread(target=_try, args=arguments, name="storage-probe", daemon=True)
    thread.start()
    thread.join(WITHIN)
    if problems:
        shown = url if url.isprintable() else repr(url)
        problem = problems[0].removeprefix(f"{shown}: ")
        if chosen:
            raise UsageError(f"--storage {shown}: {problem}")
        raise UsageError(
            f"checkpoints go to {shown}: {problem}; choose another target with --storage"
        )


def _try(url: str, owner: str, problems: list[str]) -> None:
    from spotelastic_checkpoints.commit.commit_protocol import Commits
    from spotelastic_checkpoints.errors import StorageRefused, StorageUnavailable
    from spotelastic_checkpoints.storage.open import open_storage

    try:
        Commits(open_storage(url), owner).see_conditions()
    except StorageRefused as error:
        problems.append(str(error))
    except StorageUnavailable as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in _STAYS:
            problems.append(str(error))
    except Exception as error:  # from any package that opens such a URL
        problems.append(f"{type(error).__name__}: {error}")
