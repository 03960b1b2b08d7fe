"""What is the same for all ways to reach a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

import numpy as np

VERSION = 3  # of what clients and servers say to each other, which servers check


class _Place(TypedDict):
    epoch: int
    samples: int


class State(_Place, total=False):
    """Where training resumes: what state_dict returns. It is a plain dict, which JSON can hold.

    epoch: the number of the epoch, from 0.
    samples: how many samples of the epoch have come, over all ranks.
    order, files, list: hashes, which tell a loader that the data or their order have changed since: of
        the order, of the files' sizes and times, and (with the rank) of the indices that order= or a
        sampler gave.
    batches: how many batches of the epoch nwt.torch.DataLoader has given to this rank.
    """

    order: str
    files: str
    list: Sequence[int | str]
    batches: int


Code = Literal["", "few-samples", "state-length", "state-seed", "state-sampler", "state-data", "state-beyond"]


class Error(RuntimeError):
    """A loader can't be made, or can't go on. The message says why.

    With the loaders of files and of your own dataset, this means that the data can't be loaded with these
    arguments, that a state doesn't fit them, or that nwt-serve has ended and can't be started again. With
    nwt.Loader, it may also be that no server answers. A loader that is closed raises it, too. If a single
    sample of a batch is to blame, the error is a SampleError. A wrong argument is a TypeError or ValueError,
    and a missing file a FileNotFoundError.

    code: what is wrong, for programs:
        "few-samples": with drop_last, there are fewer samples than one batch on each rank.
        "state-length": the state was saved with another number of samples.
        "state-seed": it was saved with another seed.
        "state-sampler": it was saved with another order, such as another value of shuffle or another sampler.
        "state-data": it was saved with other files, with other arguments about them, or before files changed.
        "state-beyond": it counts more samples than an epoch has.
        "": anything else. Only the message says what.
    """

    def __init__(self, text: str = "", code: Code = "") -> None:
        super().__init__(text)
        self.code = code


class SampleError(Error):
    """A sample can't be loaded.

    index: its number in the dataset.
    epoch, position: where it is; the position is that in the epoch's order, over all ranks.
    """

    def __init__(self, text: str = "", index: int = -1, position: int = -1, epoch: int = -1) -> None:
        super().__init__(text)
        self.index, self.position, self.epoch = index, position, epoch


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of an element type. NumPy has no bfloat16, so its bits are given as uint16."""
    return np.dtype({"bfloat16": "uint16"}.get(name.lower(), name.lower()))


_OTHER = "state: it was saved with {}, so the rest of its epoch would be other samples: resume with the arguments of then, or begin the next epoch (set_epoch)"

# What is wrong, by the code that nwt.ArgumentError has in Go.
TEXTS: dict[Code, str] = {
    "few-samples": "drop_last=True: there are fewer samples than one batch on each rank, so there would be no batch: a smaller batch_size, or drop_last=False",
    "state-length": _OTHER.format("another number of samples"),
    "state-seed": _OTHER.format("another seed"),
    "state-sampler": _OTHER.format("another order, such as another value of shuffle"),
    "state-data": _OTHER.format("other data: other files, or other arguments about them, such as size, train or normalize"),
    "state-beyond": "state: its samples are more than an epoch has",
}


def told(text: str, code: str = "") -> Error:
    """The error that a server has told: in Python's words, if it has a code, which may be at the text's end."""
    code = code or text.rpartition(" [")[2].removesuffix("]")
    return Error(TEXTS[code], code) if code in TEXTS else Error(text)


def fits(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Raises an error unless two servers serve the same batches."""
    for what, is_ in (("data", "dataset"), ("order", "order")):
        if one[what] != other[what]:
            raise Error(
                f"server {one['server']} has the {is_} {one[what]}, server {other['server']} has {other[what]}: "
                "files or options have changed, or aren't the same on all servers"
            )


def described(about: Any) -> dict[str, Any]:
    """Checks a server's description, and returns it."""
    if not isinstance(about, dict) or not about.get("server"):
        raise Error("this isn't an nwt server")
    return about
