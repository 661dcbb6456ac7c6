"""Runs a function in namespaces that end with it, whichever way it goes.

The function runs as the first process of a process namespace; when that ends, the
kernel ends all others. Network interfaces live in network namespaces that go with
the last process in them, and files in a file system in memory that only they see.
So there is nothing to clean up, neither after Ctrl-C nor after kill -9.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import termios
import traceback
from collections.abc import Callable

CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG = 1
SI_USER = 0  # si_code of a signal by kill(2); those of terminals have another
AGAIN, TIMES = 0.5, 10  # the child is asked to end every so many seconds, so many times at most

libc = ctypes.CDLL(None, use_errno=True)


class Unable(Exception):
    """This user, or this machine, cannot have namespaces."""


def _call(what: str, result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def check() -> None:
    """Raises Unable with the reason."""
    if os.geteuid() != 0:
        raise Unable("not root: Mininet needs network namespaces; use sudo")
    if subprocess.run(["unshare", "--net", "--pid", "--fork", "--mount-proc", "true"], capture_output=True).returncode:
        raise Unable("root, but without the right to make namespaces (CAP_SYS_ADMIN)")


def run(main: Callable[[], int], memory: str) -> int:
    """Calls main in namespaces of its own and returns its result, or 128 and the signal
    that ended it. memory is a directory that is in memory, and empty, for main."""
    check()
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    sys.stdout.flush()
    sys.stderr.flush()
    _call("unshare", libc.unshare(CLONE_NEWPID))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            status = _inside(main, memory)
        except KeyboardInterrupt:
            status = 130
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return _watch(child, signals)


def _watch(child: int, signals: set) -> int:
    """Passes on what this process is told, and waits for the child."""
    terminal = termios.tcgetattr(0) if os.isatty(0) else None  # a prompt may end before it sets it right
    asked, times = 0, 0
    while True:
        got = signal.sigtimedwait(signals, AGAIN)
        if got and got.si_signo == signal.SIGCHLD:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid == child:
                break
        elif got and (
            got.si_signo != signal.SIGINT or got.si_code == SI_USER
        ):  # the terminal's has told the child, too
            # A SIGINT would end no more than what is being done at the prompt.
            asked = asked or (signal.SIGHUP if got.si_signo == signal.SIGHUP else signal.SIGTERM)
        if asked:  # again and again: readline may sleep although it has got one
            times += 1
            os.kill(child, asked if times < TIMES else signal.SIGKILL)
    if terminal:
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        with contextlib.suppress(termios.error):  # it may be gone
            termios.tcsetattr(0, termios.TCSANOW, terminal)
    if asked:
        return 128 + asked
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _inside(main: Callable[[], int], memory: str) -> int:
    _call("prctl", libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
    _call("unshare", libc.unshare(CLONE_NEWNS | CLONE_NEWNET))
    os.makedirs(memory, exist_ok=True)
    for command in (
        "mount --make-rprivate /",
        "mount -t proc proc /proc",
        "mount -t sysfs sysfs /sys",  # of this network namespace: bmv2 asks there whether ports are up
        "ip link set lo up",
    ):
        subprocess.run(command.split(), check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", memory], check=True)

    def end(signo, _frame):
        os._exit(128 + signo)  # and the kernel ends all others; an exception might be caught on its way

    for s in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(s, end)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return main()
