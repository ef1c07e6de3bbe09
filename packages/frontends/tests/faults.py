"""What a process does that is at fault; processes.py and torch_faults.py try each."""

import os
import signal
import sys
import time

HANG_S = 160.0
"""Longer than any deadline of theirs."""


def fail() -> None:
    raise ValueError("no batch left")


FAULTS = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raises": fail,
    "exits": lambda: sys.exit(0),
    "hangs": lambda: time.sleep(HANG_S),
}
