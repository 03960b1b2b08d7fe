"""The program nwt-serve: where it is, the rank that it finds, and how it runs."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import IO, Any

from . import _check as check
from ._said import Said
from ._shared import Pipes, Socket
from ._wire import Error

logger = logging.getLogger("nwt")


def find() -> str:
    """The path of the wheel's nwt-serve, or of one in PATH."""
    name = "nwt-serve.exe" if sys.platform == "win32" else "nwt-serve"
    own = os.path.join(os.path.dirname(__file__), "bin", name)
    found = own if os.path.exists(own) else shutil.which(name)
    if not found:
        raise Error(
            "the program nwt-serve is missing. In a clone of nwt: go build -C serve -o ../python/nwt/bin/ ./cmd/nwt-serve, "
            "and then pip install ./python once more. Or have nwt-serve in PATH, or give program="
        )
    return found


# Each launcher sets one of these, or WORLD_SIZE, which images of containers set to 1. The list only avoids starting nwt-serve, which reads them.
LAUNCHERS = ("RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "JOB_COMPLETION_INDEX")


def _found(program: str | None) -> Any:
    """What a launcher has set: the rank of this process, how many there are and how many on this host, and a text if a launcher was found."""
    if not any(map(os.environ.get, LAUNCHERS)) and os.environ.get("WORLD_SIZE", "") in ("", "1"):
        return {"rank": 0, "world": 1}
    program = program or find()
    try:
        said = subprocess.run([program, "-rank"], check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=60)
        if said.returncode == 0:
            return json.loads(said.stdout)
        error = said.stderr.strip()
    except (OSError, subprocess.TimeoutExpired, ValueError) as failed:
        raise Error(f"{program} -rank: {failed}") from None
    if error.startswith("nwt-serve: nwt: "):
        raise ValueError(error.removeprefix("nwt-serve: nwt: "))
    raise Error(f"{program} -rank: {error or f'it ended with status {said.returncode}'}")


def joined() -> tuple[int, int] | None:
    """The rank and the number of ranks in torch.distributed, if the program has joined it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def place(rank: int | None, world_size: int | None, program: str | None) -> tuple[int, int]:
    """The rank and the number of ranks: those given, those of torch.distributed, or those that a launcher has set."""
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank={rank}, world_size={world_size}: give both, or neither")
    if rank is not None:
        world_size = check.integer("world_size", world_size, 1, 2**20)
        return check.integer("rank", rank, 0, world_size - 1), world_size
    if there := joined():
        return there
    try:
        found = _found(program)
    except (ValueError, Error) as error:
        raise (Error if isinstance(error, Error) else ValueError)(f"{error} (or give rank and world_size)") from None
    if "text" in found:
        logger.info("%s", found["text"])
    return found["rank"], found["world"]


def _sharing(program: str) -> int:
    """How many ranks share the CPUs of this one: fewer than are on this host if the launcher has bound it to some of its parent's."""
    try:
        ranks: int = _found(program).get("local_world", 1)
    except (ValueError, Error):  # rank and world_size were given
        ranks = 1
    try:
        own, parents = (len(os.sched_getaffinity(pid)) for pid in (0, os.getppid()))
    except (AttributeError, OSError):  # not on Linux
        return ranks
    return -(-ranks * own // parents) if own < parents else ranks


class Program:
    """Runs the program nwt-serve until close is called or this process ends."""

    def __init__(self, program: str, flags: dict[str, Any], files: Sequence[IO[bytes]]) -> None:
        self._files = files  # whose descriptors the program inherits
        self._came, self._starts = -1, 0  # what had come when it was started last, and how often since
        self._command, self._folder = [program, "-"], os.getcwd()
        told = {name: flags.pop(name) for name in ("batch", "shuffle", "seed", "drop-last", "workers", "tune", "step")}
        # the strings of a list are bytes: a path needn't be UTF-8
        self._document = {**told, "data": {n: [os.fsencode(one).decode("latin-1") for one in v] if isinstance(v, list) else v for n, v in flags.items()}}
        self.process: Any = None
        self._again = False  # whether it has ended before
        self._lock, self._over = threading.RLock(), False  # of start and end: one at a time
        self.said: Any = None  # a Said
        self.close: Callable[[], object] = lambda: None

    def start(self, came: int) -> tuple[Any, dict[str, Any]]:
        """Starts the program, at most three times without a batch in between. Returns the connection, and what the program is to do."""
        with self._lock:
            if self._over:
                raise Error("it is closed")
            return self._begin(came), self._document

    def end(self) -> None:
        """Ends the program for good. It inherits nothing from now on, so its files may be closed."""
        with self._lock:
            self._over = True
            self.close()

    def waits(self) -> None:
        """Raises OSError if the program has ended: a fork may have its end of the connection, which is open then."""
        self.said.pass_on()
        if self.process.poll() is not None:
            raise OSError("it has ended")

    def _begin(self, came: int) -> Any:
        if self.process:
            error = self._ended()
            if self.said.end:
                raise Error(f"nwt-serve can't be started again: {error}") if self._again else error
            self._starts = self._starts if came == self._came else 0
            if self._starts >= 3:
                raise Error(f"{error} (it was started 3 times without loading a batch)")
            logger.warning("starting it again: %s", error)
            self._again = True
        self._starts, self._came = self._starts + 1, came
        said = Said()
        sharing = str(_sharing(self._command[0]))
        # in torchrun's variables, so that the program takes its share of the CPUs
        environ = os.environ | {"RANK": "0", "WORLD_SIZE": sharing, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": sharing}
        ours: Any = None
        theirs: Any = None
        if sys.platform != "win32":
            ours, theirs = socket.socketpair()
        # a session of its own: Ctrl-C is for this process
        process: Any = subprocess.Popen(
            self._command, bufsize=0, stdin=theirs or subprocess.PIPE, stdout=None if theirs else subprocess.PIPE, stderr=said.file,
            cwd=self._folder, env=environ, start_new_session=True, pass_fds=[file.fileno() for file in self._files],
        )  # fmt: skip
        self.process, self.said = process, said
        self.close = weakref.finalize(self, _stop, process, said, os.getpid())
        if theirs:
            theirs.close()
        return Socket(ours) if ours else Pipes(process.stdin, process.stdout)

    def _ended(self) -> Exception:
        """Ends the program, whose connection has ended. Returns why that is."""
        try:
            status = self.process.wait(1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        error: Exception = self.said.error(status)
        self.close()
        return error


def _stop(process: subprocess.Popen[bytes], said: Said, pid: int) -> None:
    if os.getpid() != pid:
        return  # a fork's exit doesn't end it
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for file in (process.stdin, process.stdout, said.file):
        if file:
            file.close()
