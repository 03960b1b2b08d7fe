"""Memory and CPU time of this process and all its descendants, as the kernel counts them (Linux)."""

import os
import threading


def tree_pss():
    """Bytes of proportional set size: a page that n processes share counts as 1/n in each, so once in the sum."""
    return sum(_pss(pid) for pid in _tree(os.getpid()))


def tree_cpu():
    """Seconds of CPU time, of descendants that live."""
    return sum(_cpu(pid) for pid in _tree(os.getpid()))


class Peak:
    """Samples tree_pss on a thread while its block runs; the largest is in bytes."""

    def __init__(self, seconds_between=0.02):
        self.bytes = 0
        self._seconds_between = seconds_between
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self):
        while not self._stop.is_set():
            self.bytes = max(self.bytes, tree_pss())
            self._stop.wait(self._seconds_between)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def _tree(pid):
    yield pid
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as children:
                for child in children.read().split():
                    yield from _tree(int(child))
    except OSError:  # it ended meanwhile
        return


def _pss(pid):
    try:
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            return next(int(line.split()[1]) << 10 for line in rollup if line.startswith("Pss:"))
    except (OSError, StopIteration):  # it ended meanwhile
        return 0


def _cpu(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:  # it ended meanwhile
        return 0
