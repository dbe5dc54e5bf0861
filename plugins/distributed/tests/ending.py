"""Programs whose processes end, for each process of a group."""

from __future__ import annotations

import os
import time
from pathlib import Path

from torch import distributed as dist


def aborted_once(mark: str) -> int:
    """Abort one process, unless the file ``mark`` says that it was done before.

    Its pipes are closed a second before, as at the end of a process that takes long to end.
    """
    if dist.get_rank() == 1 and not Path(mark).exists():
        Path(mark).touch()
        os.closerange(3, 1024)
        time.sleep(1)
        os.abort()
    return dist.get_rank()


def aborted() -> None:
    os.abort()
