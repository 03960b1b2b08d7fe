"""A loader that gets its batches from servers."""

from __future__ import annotations

import collections
import inspect
import json
import logging
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, TypeVar

import numpy.typing as npt

from . import _check as check
from . import _children
from ._program import joined, place
from ._wire import VERSION, Error, SampleError, State

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger("nwt")

Batch = dict[str, npt.NDArray[Any]]  # by the names of fields
Take = Callable[[], Any]  # a batch, how many follow in its epoch, the state after it, and its bad samples

CLOSED = "the loader is closed"
REMEMBERED = 10_000  # bad samples


TELLS = """
    The loader tells:
    num_samples, classes: how many samples the dataset has, and the names of its classes.
    class_to_idx: the label of each class, by its name.
    num_workers: how many samples are loaded at a time.
    batch_size, drop_last, rank, world_size: what was given, or what the servers say.
    bad, bad_samples: how many samples were left out, and the SampleErrors of the first 10 000."""  # help() shows it with each


class Stats(TypedDict):
    """What a loader has delivered."""

    batches: int
    samples: int  # in these batches
    bad: int  # samples that were left out
    waited: float  # seconds in which the program waited for batches
    workers: int  # how many samples are loaded at a time


class Loader:
    """The batches of one rank, loaded by servers (nwt-serve).

    addresses: an address (host:port) or a list of addresses. If a host name stands for several hosts,
        all of them are asked. All servers must serve the same batches. A server that dies is asked
        again, so it may come back. To share memory with a server on this host, give shared:PATH as the
        only address.
    rank, world_size: the number of this process, from 0, and how many processes train together. This
        loader gets its rank's share of each step's samples. By default, both are what
        torchrun, MPI or Slurm has set in the environment. If nothing is set, this loader gets all
        samples.
    token: the token in the servers' -token-file.
    tls: True, or the path of a file with root certificates, if the servers use TLS.
    errors: how many samples per epoch may be bad. Bad samples are left out, logged, counted in `bad`,
        and listed in `bad_samples` (the first 10 000). One more is a SampleError.
    prefetch: how many batches are asked for ahead of the one in use.
    patience: how many seconds the loader keeps asking servers that don't answer.

    A batch is a dict of arrays. The first dimension of each array is the number of samples. You may
    keep an array and write to it. A ragged field NAME has its lengths in NAME.len0, NAME.len1 …
    """

    num_samples: int
    classes: list[str]
    num_workers: int
    batch_size: int
    drop_last: bool
    rank: int
    world_size: int
    bad: int
    bad_samples: list[SampleError]

    _across = True  # whether batches are asked for ahead across the end of an epoch
    _executable: str | None = None  # the path of nwt-serve, if it is known

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        rank: int | None = None,
        world_size: int | None = None,
        token: str | None = None,
        tls: bool | str | os.PathLike[str] | None = None,
        errors: int = 0,
        prefetch: int = 4,
        patience: float = 60.0,
        **unknown: NoReturn,
    ) -> None:
        _children.begin()
        self._closed: str | None = "the loader isn't open"
        check.unknown(type(self).__name__, unknown)
        self._args: tuple[tuple[Any, ...], dict[str, Any]] = (addresses,), {
            "rank": rank, "world_size": world_size, "token": token, "tls": tls,
            "errors": errors, "prefetch": prefetch, "patience": patience,
        }  # fmt: skip
        self._where = check.addresses(addresses)
        self._given = rank is not None  # the rank: or the environment's, or torch's
        self._errors = check.integer("errors", errors, 0)
        self._prefetch = check.integer("prefetch", prefetch, 1, 64)
        self._patience = check.number("patience", patience, 1e-3, 1e9)
        self.rank, self.world_size = place(rank, world_size, self._executable)
        self._token = check.token(token)
        self._tls = tls if isinstance(tls, bool) or tls is None else check.path("tls", tls)
        self._lock = threading.RLock()  # of next(), batch() and indices(), which several threads may call, and a collate_fn
        self.bad, self.bad_samples = 0, []
        self._bad_of_epoch = 0
        self._start: State = {"epoch": 0, "samples": 0}  # of the next iteration
        self._state: State = self._start  # what state_dict tells
        self._came = self._samples = 0  # batches, and their samples
        self._waited = 0.0  # seconds
        self._left = 1  # batches of the epoch after that state
        self._pin: Callable[[npt.NDArray[Any]], Callable[[], None] | None] | None = None  # of nwt.torch
        self._current: object = None  # the iteration that goes on
        self._asking: Any = None
        self._asked: collections.deque[tuple[State, int, Take]] = collections.deque()
        self._plan: tuple[State, int, int | None] = self._start, 0, None  # what is asked next: start, number, of how many
        self._transport = self._open()
        self._pid, self._closed = os.getpid(), None
        self._place(self.rank, self.world_size)

    def _open(self) -> Any:
        if self._where[0].startswith("shared:"):
            from ._shared import Shared

            return Shared(self._where[0][len("shared:") :], patience=self._patience, mapped=_weakly(self._mapped))
        from ._servers import Servers

        return Servers(self._where, token=self._token, tls=self._tls, patience=self._patience)

    def _place(self, rank: int, world_size: int) -> None:
        """Makes this loader the loader of another rank."""
        about = self._transport.describe(rank, world_size)
        self._drop()
        self.rank, self.world_size, self._batches = rank, world_size, int(about["batches"])
        self.num_samples, self.batch_size, self.num_workers = about["samples"], about["batch"], about["workers"]
        more = about.get("about") or {}
        self.classes = more.get("classes") or []
        self.drop_last = more.get("drop_last", False)
        self._bits = {field["Name"] for field in about.get("fields") or [] if field["Type"].lower() == "bfloat16"}  # fields that NumPy has no type for

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class, by the class's name."""
        return {name: number for number, name in enumerate(self.classes)}

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        self._join()
        return self._batches

    def _join(self) -> None:
        """Takes the rank of torch.distributed, which the program may have joined meanwhile, unless it has given one."""
        there = None if self._given or self._closed else joined()
        if there and there != (self.rank, self.world_size):
            logger.info("rank %d of %d, of torch.distributed", *there)
            self._place(*there)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration.

        After load_state_dict with a state in mid-epoch it does nothing: the rest of that epoch is next.
        Without set_epoch, each iteration is the epoch after the previous one.
        """
        epoch = check.integer("epoch", epoch, 0)
        if not self._start["samples"]:
            self._start = {"epoch": epoch, "samples": 0}
        elif self._start["epoch"] != epoch:
            logger.warning("set_epoch(%d) after load_state_dict: going on in epoch %d, so begin the loop there", epoch, self._start["epoch"])
        self._state, self._left = self._start, 1

    def state_dict(self) -> State:
        """The state after the last batch: a small dict, which JSON can hold.

        If set_epoch or load_state_dict was called after that batch, the state is the one that this call set.
        """
        state = self._state.copy()
        return state if self._left else {"epoch": state["epoch"] + 1, "samples": 0}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration go on after `state`. The number of ranks may be another one than in the state.

        If the argument isn't a state, this raises ValueError and changes nothing.
        """
        self._start = self._state = check.state(state)
        self._left = 1

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the next epoch. After load_state_dict, these are the rest of the state's epoch.

        An epoch begins with the first next().
        """
        self._check()
        return _Iteration(self)

    def __getitem__(self, index: object) -> NoReturn:
        raise TypeError("a loader has batches, no samples: write for batch in loader, and nwt.torch.DataLoader(loader) in place of torch's")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"{type(self).__name__} has no {name!r}{check.hint(name, [one for one in dir(self) if one[0] != '_'])}")

    def __repr__(self) -> str:
        about = [f"{self.num_samples} samples", self._batches_of(), *self._of_rank()]
        return f"nwt.{type(self).__name__}({', '.join(self._where)}: {', '.join(about)})"

    def _batches_of(self) -> str:
        return f"{len(self)} batch{'' if len(self) == 1 else 'es'} of {self.batch_size}"

    def _of_rank(self) -> list[str]:
        return [f"rank {self.rank} of {self.world_size}"] if self.world_size > 1 else []

    # Between two calls of next():
    # _start is where the next iteration will begin. As one begins in epoch e, _start becomes the begin of e+1, and stays it after a break or an error.
    # _state and _left change together. After a batch, they are the state after it and how many batches follow in its epoch, 0 after the last.
    # As an iteration begins, and after set_epoch or load_state_dict, _state is where it begins. _left is 1 then, and only says that it isn't over.
    # _asked are batches that were asked for and not given out, in order. _plan is the one after them: batch `number` of `count` after the state `start`.
    # After a resume, count is None: only batch 0 is asked for, until its answer tells how many follow. If the state was the end of its epoch e,
    # that is batch 0 of e+1, and _start becomes the begin of e+2.
    # After an epoch, _asked may begin with the next one. _begin goes on with it if it begins at _start, and else asks anew.
    # After _drop, _asked is empty, _plan means nothing until _begin or _rest sets it, and _state and _left are as before.
    # _current is the iteration that began last; an earlier one can't go on. Its `left` is None at first, _left after a batch, 0 after an error.
    # _came counts the batches since the loader was made. No epoch and no resume resets it.
    def _next(self, iteration: _Iteration) -> Batch:
        self._check()
        if iteration.left is None:
            self._begin(iteration)
        elif iteration.left and self._current is not iteration.own:
            raise Error("the loader has begun another iteration: for two at a time make a second loader")
        while iteration.left:
            try:
                self._fill()
                start, number, take = self._asked.popleft()
                begun = time.perf_counter()
                arrays, left, after, bad = take()
                self._waited += time.perf_counter() - begun
                if number == 0 and start["samples"] and (epoch := after["epoch"]) != start["epoch"]:
                    self._start = {"epoch": epoch + 1, "samples": 0}  # the state was the end of its epoch
                if number == 0 and (start["samples"] or left + 1 != self._batches):  # how many was not known, or another number
                    if not start["samples"]:
                        self._ask_anew()
                    self._plan = start, 1, left + 1
                self._fill()
                if bad:
                    self._leave_out(after["epoch"], bad)
            except BaseException as error:
                iteration.left = 0  # as a generator's
                self._drop()
                if self._closed == CLOSED and isinstance(error, Exception):  # by another thread
                    raise Error(CLOSED) from None
                raise
            iteration.left = self._left = left
            self._state = after
            if (n := len(next(iter(arrays.values())))) or not bad:
                self._came, self._samples = self._came + 1, self._samples + n
                return self._made(arrays)
            if self.world_size > 1:
                iteration.left = 0
                raise Error("no sample of a batch could be loaded: the other ranks would wait for this one")
        raise StopIteration

    def _made(self, arrays: Batch) -> Batch:
        return arrays

    def stats(self) -> Stats:
        """How many batches and samples have come since the loader was made, and how long the program has waited for them."""
        return {"batches": self._came, "samples": self._samples, "bad": self.bad, "waited": self._waited, "workers": self.num_workers}

    def batch(self, epoch: int, number: int) -> Batch:
        """Loads one batch of this rank. `number` counts the batches of the epoch from 0.

        The batch is the same as in a whole epoch, without bad samples. The iteration goes on unchanged.
        """
        with self._lock:
            ticket = self._numbered(epoch, number)
            asking = self._transport.asking(1)
            try:
                return self._made(asking.ask(ticket)()[0])
            finally:
                asking.close()

    def indices(self, epoch: int, number: int) -> list[int]:
        """The indices of the samples in one batch of this rank. `number` counts the batches of the epoch from 0.

        Bad samples are included. Nothing is loaded.
        """
        with self._lock:
            indices: list[int] = json.loads(self._transport.indices(self._numbered(epoch, number)))
        return indices

    def _ticket(self, state: State, number: int) -> bytes:
        """Asks for batch `number` after a state."""
        return json.dumps({**state, "rank": self.rank, "world": self.world_size, "version": VERSION, "batch": number, "partial": True}).encode()

    def _numbered(self, epoch: int, number: int) -> bytes:
        self._check()
        number = check.integer("number", number, 0, len(self) - 1)  # len() may join ranks, which the ticket names
        return self._ticket({"epoch": check.integer("epoch", epoch, 0), "samples": 0}, number)

    def _rest(self) -> int:
        """The number of batches in the next iteration."""
        if not self._start["samples"]:
            return self._batches
        self._ask_anew()
        self._plan = self._start, 0, None
        self._fill()
        start, number, take = self._asked[0]
        answer = take()
        self._asked[0] = start, number, lambda: answer
        return 1 + int(answer[1])

    def _begin(self, iteration: _Iteration) -> None:
        self._join()
        start, self._current = self._start, iteration.own
        whole = None if start["samples"] else self._batches  # of a rest the first answer tells how many
        iteration.left = 1 if whole is None else whole
        self._start = {"epoch": start["epoch"] + 1, "samples": 0}
        self._state, self._left, self._bad_of_epoch = start, 1, 0
        if self._asked and self._asked[0][:2] == (start, 0):
            return  # it was asked for ahead
        self._ask_anew()
        self._plan = start, 0, whole

    def _fill(self) -> None:
        """Asks for batches ahead, also across the end of an epoch."""
        while len(self._asked) < self._prefetch:
            start, number, count = self._plan
            if number == count and self._across:
                start, number, count = {"epoch": start["epoch"] + 1, "samples": 0}, 0, self._batches
            if number >= (1 if count is None else count):
                return
            self._asked.append((start, number, self._asking.ask(self._ticket(start, number))))
            self._plan = start, number + 1, count

    def _leave_out(self, epoch: int, bad: list[dict[str, Any]]) -> None:
        for one in bad:
            self._bad_of_epoch = n = self._bad_of_epoch + 1
            where = one["index"], one.get("position", -1), epoch
            if n > self._errors:
                raise SampleError(
                    f"bad sample number {n} of epoch {epoch}, and errors={self._errors} (errors=N leaves out up to N per epoch): {one['error']}", *where
                )
            self.bad += 1
            if self.bad <= REMEMBERED:
                self.bad_samples.append(SampleError(one["error"], *where))
            if n % 10 ** (len(str(n - 1)) - 1) == 0:  # the first ten, then every tenth …
                logger.warning("left out sample %d, number %d in epoch %d: %s", one["index"], n, epoch, one["error"])

    def _ask_anew(self) -> None:
        self._drop()
        self._asking = self._transport.asking(self._prefetch)

    def _drop(self) -> None:
        """Forgets what was asked for ahead."""
        self._asked.clear()
        asking, self._asking = self._asking, None  # close may be called by another thread
        if asking is not None:
            asking.close()

    def _check(self) -> None:
        if self._closed:
            raise Error(self._closed)
        if os.getpid() != self._pid:
            raise Error(f"this loader is of process {self._pid} and doesn't survive a fork: make one in each process, or start them by spawn")

    def _mapped(self, whole: npt.NDArray[Any]) -> Callable[[], None] | None:
        """Called with new memory of batches.

        If it returns a function, that function is called before the memory is freed.
        """
        return self._pin(whole) if self._pin else None

    def close(self) -> None:
        """Ends the connections, and workers that are the loader's own. The batches that came before stay valid.

        At its end, a with statement closes its loader. A loader that nothing refers to is closed as well.
        """
        if self._closed is None and os.getpid() == self._pid:
            self._closed = CLOSED
            self._drop()
            self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not sys.is_finalizing() and self.__dict__.get("_closed", "") is None:
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), *self._args, self.state_dict())


Loader.__doc__ = (Loader.__doc__ or "") + TELLS
_whole = inspect.signature(Loader.__init__)
Loader.__init__.__signature__ = _whole.replace(  # type: ignore[attr-defined]  # for help() and editors
    parameters=[one for one in _whole.parameters.values() if one.kind is not one.VAR_KEYWORD]
)


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method without a reference to its loader.

    So a loader that nobody uses ends at once, without the garbage collector.
    """
    of = weakref.WeakMethod(method)
    return lambda *args: method(*args) if (method := of()) else None


def _again(kind: type[Loader], args: tuple[Any, ...], options: dict[str, Any], state: State) -> Loader:
    loader = kind(*args, **options)
    loader.load_state_dict(state)
    return loader


T = TypeVar("T")


class Apart(Iterator[T]):
    """An iteration whose tracebacks hold nothing of it.

    A notebook keeps the last traceback, which would keep the loader, and so its program.
    """

    def take(self) -> T:
        raise NotImplementedError

    def __next__(self) -> T:
        try:
            return self.take()
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)
            del self
            raise


class _Iteration(Apart[Batch]):
    def __init__(self, loader: Loader) -> None:
        self.loader, self.own = loader, object()
        self.left: int | None = None  # batches; None until it has begun

    def take(self) -> Batch:
        with self.loader._lock:
            return self.loader._next(self)
