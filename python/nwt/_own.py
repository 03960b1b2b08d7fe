"""Loaders of samples that the program's own Python makes."""

from __future__ import annotations

import base64
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _check as check
from . import _children
from ._beside import DEFAULTS, Flags, Local, More, Options, logger
from ._loader import Apart, Batch, Loader
from ._orders import Order, Written
from ._wire import State

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Samples(More, total=False):
    """The options of nwt.DataLoader that torch's DataLoader doesn't have."""

    ragged: Mapping[str, int] | None
    object_bytes: int
    weights: npt.ArrayLike | None
    draws: int | None
    replacement: bool
    order: Callable[[int], Any] | None
    lengths: npt.ArrayLike | None
    batch_tokens: int | None
    retryable: tuple[type[BaseException], ...]


class Own(Options, Samples, total=False):
    """The options of nwt.DataLoader."""

    collate_fn: Callable[[list[Any]], Any] | None
    timeout: float | None
    worker_init_fn: Callable[[int], object] | None


OWN = Own.__annotations__.keys() - Options.__annotations__.keys()


class DataLoader(Local):
    """Batches of your own dataset as NumPy arrays. With torch, use nwt.torch.DataLoader.

    Each worker is a process of this Python, which makes samples. It has a copy of the dataset. nwt
    executes the main program once more for the workers, up to its first loader, without what stands
    under if __name__ == "__main__":. So they know classes and functions that stand above that line.
    Before each sample, a worker seeds random, numpy.random and torch by seed, epoch and position. So a
    sample is the same at any number of workers. This doesn't work on Windows.
    dataset: an object with __len__ and __getitem__, as for torch's DataLoader. dataset[i] is an array,
        a tensor, a number, a tuple or a dict of these, or another object that can be pickled. All
        samples must have the same structure.
    A batch has the structure of a sample, as torch's default_collate would give it: a dict of arrays if
    samples are dicts, a list of arrays if they are tuples. Values that are neither arrays nor numbers
    come as a list, and bfloat16 tensors as their bits, uint16. If a batch is to say which samples it
    has, return i as well.
    ragged: the arrays whose first dimension varies, with the greatest length allowed: {"text": 512}. The
        first element of a tuple is named "0", and that of a tuple "a" in a dict "a.0". The arrays are
        padded. Their lengths are "text.len0" in a dict, and the next element in a list.
    collate_fn: makes a batch from a list of samples, in this process. The samples come as pickles.
    object_bytes=4 MiB: how many bytes the pickled values of a sample may have. Values that are neither
        arrays nor numbers are pickled.
    weights: a number per sample. Samples are drawn in these proportions.
    draws: with weights, how many samples an epoch has. By default, as many as the dataset has.
    replacement=True: with weights, whether a sample may come several times in an epoch.
    order: a function that takes the epoch's number and returns the indices of its samples, which the
        ranks divide. It is called when an epoch begins. It must return the same indices on all ranks,
        and equally many for each epoch.
    lengths: a number per sample. The samples of a batch have similar lengths.
    batch_tokens: with lengths, how long the samples of a batch may be together, padding included.
        batch_size then bounds the number of samples of a batch.
    timeout: how many seconds a sample may take. After that, its process is killed and the sample is bad.
    retryable=(): exceptions after which a sample is made again. ConnectionError and TimeoutError
        are always among them.
    worker_init_fn: called in each process, with the number of the process. In a process,
        torch's get_worker_info().num_workers is None where nwt chooses how many there are.
    The loader's `source` is the dataset.
    """

    source: Any

    _options = Own

    def __init__(self, dataset: Any, **options: Unpack[Own]) -> None:
        _children.begin()
        own: dict[str, Any] = {**DEFAULTS, **options}
        if isinstance(dataset, Loader):
            raise TypeError(f"dataset={dataset!r:.200}: is a loader already: iterate over it, or over nwt.torch.DataLoader(it) for tensors")
        if isinstance(dataset, type):
            raise TypeError(f"dataset={dataset!r:.200}: is a class: write {dataset.__name__}()")
        torch = sys.modules.get("torch")
        iterable = torch is not None and isinstance(dataset, torch.utils.data.IterableDataset)
        if iterable or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise TypeError(
                f"dataset={dataset!r:.200}: must have __len__ and __getitem__; for what can only be iterated over, make __getitem__ open or read its part number i"
            )
        retryable, ragged, order = own["retryable"], own["ragged"], own["order"]
        if not isinstance(retryable, tuple) or not all(isinstance(one, type) and issubclass(one, BaseException) for one in retryable):
            raise TypeError(f"retryable={retryable!r:.200}: must be a tuple of exceptions, such as (OSError,)")
        if not isinstance(ragged, Mapping | None):
            raise TypeError(f"ragged={ragged!r:.200}: must be a dict of names and the longest lengths allowed")
        for name in ("collate_fn", "worker_init_fn", "order"):
            if own[name] is not None and not callable(own[name]):
                raise TypeError(f"{name}={own[name]!r:.200}: must be a function")
        self.source, self._collate = dataset, own["collate_fn"]
        self._written: Written | None = None
        self._files: list[IO[bytes]] = []
        made = {
            "dataset": dataset,
            "ragged": {str(name): check.integer(f"ragged[{name!r}]", longest, 1, 2**31 - 1) for name, longest in (ragged or {}).items()},
            "whole": self._collate is not None,
            "objects": check.integer("object_bytes", own["object_bytes"], 1, 2**30),
            "retryable": retryable,
            "init": own["worker_init_fn"],
            "workers": _children.known(own),
        }
        try:
            told: Flags = {
                **_children.told(made, own["timeout"], self._files),
                **self._order(len(dataset), own["weights"], own["draws"], own["lengths"], own["batch_tokens"]),
                "once": not check.boolean("replacement", own["replacement"]),
            }
            if order is not None:
                if own["weights"] is not None or own["lengths"] is not None or own["shuffle"]:
                    raise ValueError("order: it decides alone, without weights, lengths and shuffle")
                self._written, self._across = Written(order if isinstance(order, Order) else Order(order), len(dataset)), False
                told |= {"order": _children.kept(self._written.file, self._files), "draws": self._written.length}
            if self._collate is not None:
                logger.info("collate_fn: samples come to this process as pickles, and are combined while training waits")
            super().__init__(((dataset,), dict(options)), {"python": told}, {n: v for n, v in options.items() if n not in OWN}, self._files)
        except BaseException:
            for file in self._files:
                file.close()
            raise
        self._tree = pickle.loads(base64.b64decode(self._transport.about["about"]["tree"]))
        self._objects = list(_children.objects(self._tree))
        self._names = [field["Name"] for field in self._transport.about["fields"]]

    def _order(self, n: int, weights: Any, draws: int | None, lengths: Any, tokens: int | None) -> Flags:
        """Checks what is said of the order, and returns what nwt-serve is told of it."""
        if weights is not None and lengths is not None:
            raise ValueError("weights and lengths: only one of them can decide the order")
        if draws is not None and weights is None or tokens is not None and lengths is None:
            raise ValueError("draws is for weights, and batch_tokens for lengths")
        told: Flags = {}
        for name, value, kind in (("weights", weights, np.float64), ("lengths", lengths, np.int64)):
            if value is not None:
                try:
                    numbers = np.ascontiguousarray(value, kind)
                except (TypeError, ValueError) as error:
                    raise TypeError(f"{name}: {error}") from None
                if numbers.shape != (n,):
                    raise ValueError(f"{name}: must be a number per sample: there are {n} samples, and the shape is {numbers.shape}")
                told[name] = _children.held(numbers.tobytes(), self._files)
        if draws is not None:
            told["draws"] = check.integer("draws", draws, 1)
        if tokens is not None:
            told["tokens"] = check.integer("batch_tokens", tokens, 1)
        return told

    def _source(self) -> str:
        return type(self.source).__name__

    def _made(self, arrays: dict[str, npt.NDArray[Any]]) -> Any:
        batch = super()._made(arrays)
        if not self._objects:
            return batch
        rows, lens = batch.pop(_children.OBJECTS), batch.pop(_children.OBJECTS + ".len0")
        samples = [pickle.loads(row[:n]) for row, n in zip(rows, lens)]
        if self._collate is not None:
            return self._collate([sample[0] for sample in samples])
        lists: dict[str, Any] = {name: [sample[k] for sample in samples] for k, name in enumerate(self._objects)}
        return {**batch, **lists}

    def __iter__(self) -> Iterator[Any]:
        """As in Loader. Batches have the structure of a sample."""
        return _AsSamples(self, super().__iter__())

    def batch(self, epoch: int, number: int) -> Any:
        """As in Loader. The batch has the structure of a sample."""
        return self._as_sample(super().batch(epoch, number))

    def _as_sample(self, batch: Any) -> Any:
        """A batch in the structure of a sample. The lengths of a ragged array follow it, in a dict as NAME.len0."""
        if self._collate is not None:
            return batch
        values = self._values(batch, self._tree)
        return values[0] if len(values) == 1 else values

    def _values(self, batch: Mapping[str, Any], tree: Any) -> list[Any]:
        if tree[0] in ("array", "object"):
            name = self._names[tree[1]] if tree[0] == "array" else tree[1]
            return [batch[key] for key in (name, f"{name}.len0") if key in batch]
        _, kind, parts = tree
        if kind is None:
            return [{name: value for key, part in parts for name, value in zip((key, f"{key}.len0"), self._values(batch, part))}]
        values = [value for part in parts for value in self._values(batch, part)]
        return [kind(*values) if hasattr(kind, "_fields") and len(values) == len(parts) else values]

    def _fill(self) -> None:
        if self._written:
            self._written.write(0, self._plan[0]["epoch"])
        super()._fill()

    def _numbered(self, epoch: int, number: int) -> bytes:
        ticket = super()._numbered(epoch, number)
        if self._written:
            self._written.write(1, int(epoch))
        return ticket

    def state_dict(self) -> State:
        """As in Loader. With order, the state also has a hash of the epoch's indices in mid-epoch."""
        state = super().state_dict()
        if self._written and state["samples"]:
            state["list"] = self._written.mark(state["epoch"])
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        start = check.state(state)
        if self._written and start["samples"]:
            self._written.expect(start["epoch"], state.get("list"))
            if self._written.length - start["samples"] < (self.batch_size * self.world_size if self.drop_last else 1):
                state = {"epoch": start["epoch"] + 1, "samples": 0}  # nothing is left of its epoch
        super().load_state_dict(state)

    def close(self) -> None:
        super().close()
        for file in self._files:
            file.close()


class _AsSamples(Apart[Any]):
    def __init__(self, loader: DataLoader, batches: Iterator[Batch]) -> None:
        self._loader, self._batches = loader, batches

    def take(self) -> Any:
        return self._loader._as_sample(next(self._batches))
