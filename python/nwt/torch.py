"""A torch.utils.data.DataLoader over any loader of nwt."""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed
import torch.utils.data

from . import _check as check
from ._loader import Apart, Batch, Loader

logger = logging.getLogger("nwt")


class DataLoader(torch.utils.data.DataLoader[Any]):
    """The batches of a loader of nwt as tensors, for a training loop or a trainer.

    fields: with ("image", "label"), a batch is a tuple of these tensors. With
        {"pixel_values": "image"}, it is a dict in which the tensor "image" is named "pixel_values".
        By default it is a dict of all tensors under their own names.
    pin_memory: whether tensors are in page-locked memory, if there is a GPU. Shared memory is
        registered with the GPU's driver once, and not copied.
    device: where tensors are sent; by default they stay on the host. If you send them yourself with
        non_blocking=True, do so on the current stream of the current device, or wait for the copy
        before you take the next batch.

    A tensor that stays on the host shares the memory of the batch, unless pinning has copied it.
    If torch.distributed is initialized, it sets the rank, unless the loader was given a rank.
    """

    _is_accelerate_prepared = True  # Accelerate would divide the batches among the ranks again

    def __init__(
        self,
        loader: Loader,
        *,
        fields: Sequence[str] | Mapping[str, str] | None = None,
        pin_memory: bool = False,
        device: torch.device | str | None = None,
        **unknown: NoReturn,
    ) -> None:
        if not isinstance(loader, Loader):
            raise TypeError(f"loader={loader!r:.200}: must be a loader of nwt, such as nwt.ImageFolder(…)")
        for name in unknown:
            raise TypeError(f"nwt.torch.DataLoader has no argument {name!r}: {check.HINTS.get(name, f'nwt.{type(loader).__name__} has it, or decides it')}")
        if isinstance(fields, str):
            raise TypeError(f"fields={fields!r}: must be names, such as ({fields!r},)")
        super().__init__(_Samples(loader), batch_size=None)
        self.loader, self.fields, self.device = loader, fields, device
        # torch's class doesn't let them be set otherwise
        self.__dict__.update(batch_size=loader.batch_size, drop_last=loader.drop_last, pin_memory=check.boolean("pin_memory", pin_memory))
        self._count = 0  # batches of the epoch that were given out, before a resume too
        self._resumed = False  # since the last iteration began
        self._length: int | None = None  # of a resumed epoch
        self._told: int | None = None  # that length, which a trainer may take for all epochs'

    def __len__(self) -> int:
        """The number of batches in an epoch.

        For a resumed epoch, it counts the batches before the state and after it.
        """
        self._join()
        if not self.loader._left and not self._resumed:
            self._length = None  # nothing is left of the epoch
        if self._resumed and self._length is None:
            self._length = self._told = self._count + self.loader._rest()
        return len(self.loader) if self._length is None else self._length

    def remaining(self, epochs: int) -> int:
        """The number of batches until the end of so many epochs: of the rest of a resumed one, and of those after it."""
        state, epochs = self.state_dict(), check.integer("epochs", epochs, 0)
        left = epochs - int(state["epoch"])
        return len(self) - int(state["batches"]) + (left - 1) * len(self.loader) if left > 0 else 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the next epoch. After load_state_dict it does nothing: the state's epoch is next."""
        if not self._resumed:
            self.loader.set_epoch(epoch)
            self._count, self._length = 0, None
        elif self.loader.state_dict()["epoch"] != epoch:
            logger.warning("set_epoch(%d) after load_state_dict: going on in epoch %d, so begin the loop there", epoch, self.loader.state_dict()["epoch"])

    def state_dict(self) -> dict[str, Any]:
        return {**self.loader.state_dict(), "batches": self._count if self.loader._left else 0}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loader.load_state_dict(state)
        self._resumed, self._count, self._length = True, check.integer("state['batches']", state.get("batches", 0), 0), None

    def __reduce__(self) -> Any:
        return _again, (self.loader, self.fields, self.pin_memory, self.device, self._resumed, self._count if self.loader._left else 0)

    def __repr__(self) -> str:
        return f"nwt.torch.DataLoader({self.loader!r}" + (f", fields={self.fields!r})" if self.fields else ")")

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch's type has more
        return _Tensors(self._tensors(iter(self.loader)))

    def _join(self) -> None:
        """Takes the rank of torch.distributed, unless the loader was given one."""
        if self.loader._given or not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return
        place = torch.distributed.get_rank(), torch.distributed.get_world_size()
        if place != (self.loader.rank, self.loader.world_size):
            logger.info("rank %d of %d, of torch.distributed", *place)
            self.loader._place(*place)

    def _tensors(self, batches: Iterator[Batch]) -> Generator[Any, None, None]:
        self._join()
        loader = self.loader
        if self._length is not None and loader._left and self._count == len(loader) and not self._resumed:
            loader.load_state_dict(loader.state_dict())  # a trainer that has counted a whole epoch's: the rest goes on
        if not self._resumed:
            if loader._left and self._count == self._told:
                logger.warning(
                    "an epoch was ended after %d of %d batches, as many as the resumed one had: this trainer has asked for their number once, and loses samples "
                    "(Lightning: Trainer(reload_dataloaders_every_n_epochs=1); transformers: docs/python.md)",
                    self._count, len(loader),
                )  # fmt: skip
            self._count, self._length = 0, None
        elif self._length is None:
            len(self)
        self._resumed = False
        memory = _Registered(loader, self.device) if self.pin_memory and torch.cuda.is_available() else None
        try:
            for batch in batches:
                self._count += 1
                yield self._of(batch, memory)
                if memory:
                    memory.hold(batch)
                del batch
            self._length = None
        finally:
            if memory:
                memory.close()

    def _of(self, batch: Batch, memory: _Registered | None) -> Any:
        tensors: Any = Batch()
        for name, array in batch.items():
            tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if name in self.loader._bits else torch.from_numpy(array)
            if memory and not memory.has(tensor):
                tensor = tensor.pin_memory()
            tensors[name] = tensor if self.device is None else tensor.to(self.device, non_blocking=True)
        if self.fields is None:
            return tensors
        for name in self.fields.values() if isinstance(self.fields, Mapping) else self.fields:
            if name not in tensors:
                raise ValueError(f"fields={self.fields!r}: a batch has {', '.join(tensors.keys())}")
        if isinstance(self.fields, Mapping):
            return {name: tensors[old] for name, old in self.fields.items()}
        return tuple(tensors[name] for name in self.fields)


def _again(loader: Loader, fields: Any, pin_memory: bool, device: Any, resumed: bool, count: int) -> DataLoader:
    again = DataLoader(loader, fields=fields, pin_memory=pin_memory, device=device)
    again._resumed, again._count = resumed or count > 0, count
    return again


class _Tensors(Apart[Any]):
    def __init__(self, tensors: Generator[Any, None, None]) -> None:
        self._tensors = tensors

    def take(self) -> Any:
        return next(self._tensors)


class _Samples(torch.utils.data.IterableDataset[Any]):
    """The dataset of a DataLoader. It says how many samples there are, and their classes."""

    def __init__(self, loader: Loader) -> None:
        self.loader, self.classes, self.class_to_idx = loader, loader.classes, loader.class_to_idx

    def __len__(self) -> int:
        return self.loader.num_samples

    def __iter__(self) -> NoReturn:
        raise TypeError("iterate over the nwt.torch.DataLoader, not over its dataset; to skip batches, load_state_dict (transformers: ignore_data_skip=True)")


class _Registered:
    """Shared memory that is registered with the GPU's driver.

    A batch in this memory is kept until the GPU has copied the batch.
    """

    def __init__(self, loader: Loader, device: torch.device | str | None) -> None:
        self._device = device if device is not None and torch.device(device).type == "cuda" else None  # None: the current one
        self._held: collections.deque[tuple[Any, Batch]] = collections.deque()
        self._known = loader.__dict__.setdefault("_registered", {})  # end by address
        if loader._pin is None:
            loader._pin = self._register
            loader._drop()  # what was mapped before isn't registered

    def _register(self, whole: npt.NDArray[Any]) -> Callable[[], None] | None:
        address, known = whole.ctypes.data, self._known
        if error := int(torch.cuda.cudart().cudaHostRegister(address, whole.nbytes, 0)):  # type: ignore[no-untyped-call]
            logger.warning("cudaHostRegister of %d bytes: error %d: they are copied", whole.nbytes, error)
            return None
        known[address] = address + whole.nbytes

        def undo() -> None:
            del known[address]
            torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]

        return undo

    def has(self, tensor: torch.Tensor) -> bool:
        return any(begin <= tensor.data_ptr() < end for begin, end in self._known.items())

    def hold(self, batch: Batch) -> None:
        """Keeps a batch until the GPU has done all the work that was queued before this call."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._held.append((event, batch))
        while self._held and (len(self._held) > 2 or self._held[0][0].query()):
            self._held.popleft()[0].synchronize()

    def close(self) -> None:
        while self._held:
            self._held.popleft()[0].synchronize()
