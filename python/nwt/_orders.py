"""Orders of an epoch that the program gives as lists of indices."""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ._wire import Error


class Order:
    """Indices that a function of the epoch returns. All ranks divide them, and any epoch can be had again."""

    name = "order"
    length = 0  # of an epoch, if it is known before
    place = 0, 1  # the rank whose own they are, of how many
    again = True

    def __init__(self, function: Callable[[int], Any]) -> None:
        self._function = function

    def __call__(self, epoch: int) -> Any:
        return self._function(epoch)


class Written:
    """The orders of two epochs in a file that nwt-serve reads. Each is its epoch's number, from 1, and its indices, in 8 bytes each.

    Part 0 has the epoch that goes on, part 1 another one. Nothing is said over the connection, so a
    program that is started again goes on in the same order.
    """

    def __init__(self, order: Order, samples: int) -> None:
        self._order, self._samples, self.length = order, samples, order.length
        self._parts = [(-1, ""), (-1, "")]  # the epoch of each part, and a hash of its indices
        self._expected: tuple[int, list[Any]] = -1, []  # an epoch that is resumed, and its mark
        self.file, self._lock = tempfile.TemporaryFile(), threading.Lock()  # the lock is of both
        if not self.length:
            self.write(0, 0)

    def write(self, part: int, epoch: int) -> None:
        """Makes sure that an epoch is in part 0 or, for part 1, in either part. If it isn't, writes it to `part`."""
        with self._lock:
            if all(of != epoch for of, _ in self._parts[: part + 1]):
                if part and not self._order.again:
                    raise ValueError(f"{self._order.name} gives indices only as an epoch begins: of epoch {epoch}, no batch can be had again")
                indices = self._indices(epoch)
                digest = hashlib.sha256(indices.tobytes()).hexdigest()[:16]
                of, mark = self._expected
                if of == epoch and mark[0] == self._order.place[0] and mark[2] != digest:
                    raise Error(
                        f"state: {self._order.name} gives other indices in epoch {epoch} than when it was saved: begin the next epoch (set_epoch)",
                        "state-sampler",
                    )
                self._parts[part] = -1, ""
                self.file.seek(8 * part * (1 + self.length))
                self.file.write(np.concatenate([[1 + epoch], indices]).tobytes())
                self.file.flush()
                self._parts[part] = epoch, digest

    def _indices(self, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        given, where = self._order(epoch), f"{self._order.name}, epoch {epoch}"
        indices = np.asarray(given if hasattr(given, "__len__") else list(given))
        if indices.ndim != 1 or indices.dtype.kind not in "iu" or not len(indices):
            raise TypeError(f"{where}: must be a list of indices: {given!r:.200}")
        self.length = self.length or len(indices)
        if len(indices) != self.length:
            raise ValueError(f"{where}: there are {len(indices)} indices, and {self.length} in other epochs: must be as many in each")
        if not 0 <= indices.min() <= indices.max() < self._samples:
            raise ValueError(f"{where}: the indices {indices.min()} … {indices.max()} must be 0 … {self._samples - 1}")
        return indices.astype(np.int64)

    def mark(self, epoch: int) -> list[Any]:
        """What a state in mid-epoch has: the rank, the number of ranks and a hash."""
        return [*self._order.place, self._parts[0][1]] if self._parts[0][0] == epoch else self._expected[1]

    def expect(self, epoch: int, mark: Any) -> None:
        """Checks the mark in a state, and keeps it until the epoch's indices are known."""
        if not isinstance(mark, (list, tuple)) or len(mark) != 3:
            raise ValueError("state: it was saved without order or sampler, so the rest of its epoch would be other samples: begin the next epoch (set_epoch)")
        if mark[1] != self._order.place[1]:
            raise Error(
                f"state: it was saved on {mark[1]} ranks, and this is one of {self._order.place[1]}: "
                f"the indices of {self._order.name} are each rank's own, so resume on as many, or begin the next epoch (set_epoch)",
                "state-sampler",
            )
        self._expected = epoch, list(mark)
