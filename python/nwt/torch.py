"""A DataLoader in place of torch.utils.data.DataLoader, for a dataset of your own or for any loader of nwt."""

from __future__ import annotations

import collections
import inspect
import logging
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed
import torch.utils.data

from . import _check as check
from . import _children, _own
from ._beside import signature
from ._loader import Apart, Batch, Loader, Stats
from ._orders import Order
from ._own import Samples
from ._program import place as place_of
from ._result import Result
from ._wire import SampleError, State

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["DataLoader"]

logger = logging.getLogger("nwt")

# The arguments of torch's DataLoader that are for a dataset, and their defaults there.
TORCHS = {
    name: one.default
    for name, one in inspect.signature(torch.utils.data.DataLoader.__init__).parameters.items()
    if name not in ("self", "dataset", "pin_memory")
}


class DataLoader(torch.utils.data.DataLoader[Any]):
    """In place of torch's DataLoader: change the import, and keep the line.

    dataset: an object with __len__ and __getitem__, as for torch's DataLoader. A batch has the
        structure of a sample. It has tensors, and lists for strings. The arguments have the order and
        the defaults of torch's. After them come the arguments of nwt.DataLoader, such as tune, ragged
        and errors. The dataset may also be a loader of nwt, which takes these arguments itself.
        Tensors then take the place of its arrays.
    batch_sampler, batch_size=None and an IterableDataset are errors. help(nwt.DataLoader) says what of
    your script is executed once more for the workers.

    These arguments mean something else than in torch:
    num_workers=0: how many processes make samples. 0 means one. In torch, the training process makes them.
    timeout: seconds for a sample; then its process is killed and the sample is bad. In torch, the wait
        for a batch, which is patience here.
    collate_fn: called in the training process, with samples that come as pickles. In torch, workers call it.
    worker_init_fn: called once in each process, with its number. A process that replaces another has a
        new number. In torch, each worker calls it in each epoch. Seeds that it sets have no effect,
        because nwt seeds before each sample.
    prefetch_factor: prefetch_factor × num_workers batches are asked for ahead, at most 64. By default, 4
        are, at any number of workers. In torch, the default is 2 per worker.
    persistent_workers: no effect. Workers live until the loader is closed.
    in_order: no effect. Batches come in order.
    multiprocessing_context, pin_memory_device: no effect.

    These are as in torch, or nwt's own:
    sampler: torch's own samplers say how samples are ordered: RandomSampler, SequentialSampler,
        WeightedRandomSampler, SubsetRandomSampler and DistributedSampler. The order depends on seed,
        and the ranks divide it. Any other sampler gives this rank's own indices when an epoch begins.
    seed: by default, the seed of the DistributedSampler or of `generator`, or 0 without them. So two runs
        have the same order and augmentations. torch.manual_seed doesn't change them.
    fields: with ("image", "label"), a batch is a tuple of these tensors. With
        {"pixel_values": "image"}, a batch is a dict in which the tensor "image" is named "pixel_values".
    pin_memory: whether tensors are in page-locked memory, if there is a GPU. Shared memory is
        registered with the GPU's driver once, and not copied.
    device: where tensors are sent. By default, they stay on the host. If you send them yourself with
        non_blocking=True, use the current stream of the current device. With another stream, wait for
        the copy before you take the next batch.

    The DataLoader also has what its loader has: num_samples, classes, class_to_idx, files, rank,
    world_size, bad, bad_samples, result, stats, indices, batch and close. `source` is your own
    dataset. A tensor that stays on the host shares the memory of the batch. If it was copied to be
    pinned, it has memory of its own. If torch.distributed is initialized and the loader was given no
    rank, torch.distributed sets the rank.
    """

    num_samples: int
    classes: list[str]
    class_to_idx: dict[str, int]
    files: list[str]
    rank: int
    world_size: int
    bad: int
    bad_samples: list[SampleError]
    result: Result | None
    source: Any

    _is_accelerate_prepared = True  # Accelerate would divide the batches among the ranks again

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        fields: Sequence[str] | Mapping[str, str] | None = None,
        device: torch.device | str | None = None,
        **options: Unpack[Samples],
    ) -> None:
        _children.begin()
        given = {name: value for name, value in locals().items() if name in TORCHS}
        if isinstance(dataset, Loader):
            for name in [*_changed(given), *options]:
                hint = check.HINTS.get(name, f"nwt.{type(dataset).__name__} has it, or decides it")
                raise TypeError(f"nwt.torch.DataLoader of a loader of nwt has no argument {name!r}: {hint}")
            loader = dataset
        else:
            loader = _loader_of(dataset, given, dict(options))
        if isinstance(fields, str):
            raise TypeError(f"fields={fields!r}: must be names, such as ({fields!r},)")
        if fields is not None and collate_fn is not None:
            raise TypeError("fields and collate_fn: let collate_fn return what is needed")
        super().__init__(_Samples(loader), batch_size=None)
        self.loader, self.fields, self.device = loader, fields, device
        # torch's class doesn't let them be set otherwise
        self.__dict__.update(batch_size=loader.batch_size, drop_last=loader.drop_last, pin_memory=check.boolean("pin_memory", pin_memory))
        self.num_workers = loader.num_workers
        if loader is not dataset:  # programs and trainers read what they gave
            kept = ("timeout", "worker_init_fn", "generator", "prefetch_factor", "persistent_workers")
            self.__dict__.update({name: given[name] for name in kept}, collate_fn=collate_fn or torch.utils.data.default_collate)
        if sampler is not None:
            self.__dict__["sampler"] = sampler
        self._epoch = getattr(sampler, "epoch", None)  # that the sampler was set to
        self._count = 0  # batches of the epoch that were given out, before a resume too
        self._resumed = False  # since the last iteration began
        self._length: int | None = None  # of a resumed epoch
        self._told: int | None = None  # that length, which a trainer may take for all epochs'

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:  # what the loader has
            if name.startswith("_") or "loader" not in self.__dict__:
                raise AttributeError(f"nwt.torch.DataLoader has no {name!r}")
            return getattr(self.loader, name)

    def stats(self) -> Stats:
        """As in nwt.Loader."""
        return self.loader.stats()

    def close(self) -> None:
        """Closes its loader, also one that it was given."""
        self.loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for name in dir(self.loader) if not name.startswith("_"))]

    def __len__(self) -> int:
        """The number of batches in an epoch.

        For a resumed epoch, it counts the batches before the state and after it.
        """
        self.loader._join()
        if not self.loader._left and not self._resumed:
            self._length = None  # nothing is left of the epoch
        if self._resumed and self._length is None:
            self._length = self._told = self._count + self.loader._rest()
        return len(self.loader) if self._length is None else self._length

    def remaining(self, epochs: int) -> int:
        """How many batches are left until `epochs` epochs are over. Of a resumed epoch, only the rest counts."""
        state, epochs = self.state_dict(), check.integer("epochs", epochs, 0)
        left = epochs - int(state["epoch"])
        return len(self) - int(state["batches"]) + (left - 1) * len(self.loader) if left > 0 else 0

    def batch(self, epoch: int, number: int) -> Any:
        """Loads one batch of this rank, as an iteration gives it. `number` counts the batches of the epoch from 0.

        The iteration goes on unchanged.
        """
        (batch,) = self._sent(iter([Loader.batch(self.loader, epoch, number)]), self._memory(), 0)
        return batch

    def indices(self, epoch: int, number: int) -> list[int]:
        """As in nwt.Loader."""
        return self.loader.indices(epoch, number)

    def set_epoch(self, epoch: int) -> None:
        """Sets the next epoch. After load_state_dict it does nothing: the state's epoch is next."""
        if not self._resumed:
            self.loader.set_epoch(epoch)
            self._count, self._length = 0, None
        elif self.loader.state_dict()["epoch"] != epoch:
            logger.warning("set_epoch(%d) after load_state_dict: going on in epoch %d, so begin the loop there", epoch, self.loader.state_dict()["epoch"])

    def state_dict(self) -> State:
        """As in nwt.Loader, with `batches`."""
        return {**self.loader.state_dict(), "batches": self._count if self.loader._left else 0}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As in nwt.Loader. len() of the epoch that is resumed counts the batches before the state, too."""
        self.loader.load_state_dict(state)
        self._resumed, self._count, self._length = True, check.integer("state['batches']", state.get("batches", 0), 0), None

    def __reduce__(self) -> Any:
        count = self._count if self.loader._left else 0
        more = {"_resumed": self._resumed or count > 0, "_count": count, "sampler": self.sampler}
        return _again, (self.loader, self.fields, self.pin_memory, self.device, more)

    def __repr__(self) -> str:
        of = repr(self.loader)
        if isinstance(self.loader, _own.DataLoader):
            of = of.removeprefix("nwt.DataLoader(").removesuffix(")")
        return f"nwt.torch.DataLoader({of}" + (f", fields={self.fields!r})" if self.fields else ")")

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch's type has more
        return _Tensors(self._tensors(Loader.__iter__(self.loader)))  # by names, also of one's own dataset

    def _tensors(self, batches: Iterator[Batch]) -> Generator[Any, None, None]:
        self.loader._join()
        loader = self.loader
        if (epoch := getattr(self.sampler, "epoch", None)) is not None and epoch != self._epoch:
            self._epoch = epoch  # the loop has set a DistributedSampler's
            self.set_epoch(epoch)
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
        memory = self._memory()
        if memory:
            memory.begin(loader)
        yield from self._sent(batches, memory, 1)
        self._length = None

    def _memory(self) -> _Registered | None:
        return _Registered(self.loader, self.device) if self.pin_memory and torch.cuda.is_available() else None

    def _sent(self, batches: Iterator[Batch], memory: _Registered | None, count: int) -> Generator[Any, None, None]:
        try:
            for batch in batches:
                self._count += count
                yield self._of(batch, memory)
                if memory:
                    memory.hold(batch)
                del batch
        finally:
            if memory:
                memory.close()

    def _of(self, batch: Any, memory: _Registered | None) -> Any:
        def sent(tensor: torch.Tensor) -> torch.Tensor:
            if memory and not memory.has(tensor):
                tensor = tensor.pin_memory()
            return tensor if self.device is None else tensor.to(self.device, non_blocking=True)

        if isinstance(self.loader, _own.DataLoader) and self.loader._collate is not None:
            return batch if memory is None and self.device is None else _each(batch, sent)
        tensors: Any = {}
        for name, array in batch.items():
            if isinstance(array, np.ndarray):
                tensors[name] = sent(torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if name in self.loader._bits else torch.from_numpy(array))
            else:
                tensors[name] = array
        if self.fields is None:
            return self.loader._as_sample(tensors) if isinstance(self.loader, _own.DataLoader) else tensors
        for name in self.fields.values() if isinstance(self.fields, Mapping) else self.fields:
            if name not in tensors:
                raise ValueError(f"fields={self.fields!r}: a batch has {', '.join(tensors.keys())}")
        if isinstance(self.fields, Mapping):
            return {name: tensors[old] for name, old in self.fields.items()}
        return tuple(tensors[name] for name in self.fields)


DataLoader.__signature__ = signature(DataLoader.__init__, Samples)  # type: ignore[attr-defined]


def _again(loader: Loader, fields: Any, pin_memory: bool, device: Any, more: dict[str, Any]) -> DataLoader:
    again = DataLoader(loader, fields=fields, pin_memory=pin_memory, device=device)
    again.__dict__.update(more)
    return again


def _each(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Changes the tensors in what a collate_fn has made."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _each(part, change) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_each(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _changed(given: Mapping[str, Any]) -> list[str]:
    """The names of the arguments that aren't torch's defaults."""
    return [name for name, value in given.items() if value is not TORCHS[name] and not (isinstance(value, (bool, int, float, str)) and value == TORCHS[name])]


def _loader_of(dataset: Any, given: Mapping[str, Any], options: dict[str, Any]) -> _own.DataLoader:
    """The loader of a dataset that DataLoader was given, with torch's arguments and options of nwt.DataLoader."""
    if given["batch_sampler"] is not None:
        raise TypeError("batch_sampler: for batches of similar lengths give lengths=, a number per sample, with batch_size or batch_tokens")
    if given["batch_size"] is None:
        raise TypeError(
            "batch_size=None: let __getitem__ return one sample; if your samples are batches already, give batch_size=1 and collate_fn=lambda samples: samples[0]"
        )
    if idle := [name for name in _changed(given) if name in ("multiprocessing_context", "pin_memory_device", "in_order")]:
        logger.info("%s: without effect: workers are processes that nwt makes, without a GPU, and batches come in order", ", ".join(idle))
    if given["timeout"]:
        logger.info("timeout=%s bounds each sample here, and patience= the wait for a batch", given["timeout"])
    told = {name: given[name] for name in ("batch_size", "num_workers", "drop_last", "worker_init_fn")}
    told |= {"timeout": given["timeout"] or None, "shuffle": bool(given["shuffle"])}
    if given["collate_fn"] is not torch.utils.data.default_collate:
        told["collate_fn"] = given["collate_fn"]
    if (ahead := given["prefetch_factor"]) is not None:
        told["prefetch"] = min(64, check.integer("prefetch_factor", ahead, 1) * (given["num_workers"] or 1))
    sampler, generator = given["sampler"], given["generator"] or getattr(given["sampler"], "generator", None)
    told["seed"] = generator.initial_seed() % 2**64 if isinstance(generator, torch.Generator) else 0
    told |= options
    if sampler is not None:
        if any(told.get(name) is not None and told[name] is not False for name in ("shuffle", "weights", "lengths", "order")):
            raise ValueError("sampler: it decides the order alone, without shuffle, weights, lengths and order")
        told |= _order_of(sampler, len(dataset), told, options)
    return _own.DataLoader(dataset, **told)


def _order_of(sampler: Any, n: int, told: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of nwt.DataLoader that stand for a sampler of torch, or for another iterable of indices."""
    data, kind, seed = torch.utils.data, type(sampler), told["seed"]
    if not hasattr(sampler, "__len__"):
        raise TypeError(f"sampler={sampler!r:.200}: must have __len__, so that the number of batches is known")
    if not len(sampler):
        raise ValueError(f"sampler={sampler!r:.200}: gives no index")
    if kind is data.SequentialSampler and len(sampler) == n:
        return {}
    if kind is data.DistributedSampler and len(sampler.dataset) == n:
        own = {"rank": sampler.rank, "world_size": sampler.num_replicas}
        for name, value in own.items():
            if options.get(name) not in (None, value):
                raise ValueError(f"{name}={options[name]!r:.200}: must be the DistributedSampler's, {value}, or left out")
        if sampler.drop_last and n % sampler.num_replicas and not told["drop_last"]:
            logger.warning(
                "the DistributedSampler's drop_last has no effect: nwt loads each sample, so in an epoch's last two batches some ranks may have one sample more. "
                "For equal batches give the DataLoader drop_last=True",
            )
        return {**own, "shuffle": sampler.shuffle, "seed": options.get("seed", sampler.seed)}
    if kind is data.WeightedRandomSampler and len(sampler.weights) <= n:
        weights = np.pad(np.asarray(sampler.weights), (0, n - len(sampler.weights)))
        return {"weights": weights, "draws": sampler.num_samples, "replacement": sampler.replacement}
    if kind is data.RandomSampler and len(sampler.data_source) == n:
        if sampler.replacement:
            return {"weights": np.ones(n), "draws": sampler.num_samples}
        return {"shuffle": True} if sampler.num_samples == n else {"order": _Shuffled(np.arange(n), sampler.num_samples, seed)}
    if kind is data.SubsetRandomSampler:
        return {"order": _Shuffled(np.asarray(sampler.indices), len(sampler), seed)}
    place = place_of(told.get("rank"), told.get("world_size"), told.get("program"))
    # nobody divides it, and the samples of two ranks are augmented differently
    return {"order": _Taken(sampler, seed, place), "seed": (seed + place[0]) % 2**64, "rank": 0, "world_size": 1}


class _Shuffled:
    """Some indices in another order in each epoch, as many as an epoch has."""

    def __init__(self, indices: npt.NDArray[Any], number: int, seed: int) -> None:
        self.indices, self.number, self.seed = indices, number, seed

    def __call__(self, epoch: int) -> npt.NDArray[Any]:
        generator = np.random.default_rng([self.seed, epoch])
        rounds = -(-self.number // len(self.indices))
        return np.concatenate([generator.permutation(self.indices) for _ in range(rounds)])[: self.number]


class _Taken(Order):
    """What a sampler gives as an epoch begins, for this rank. What it draws from generators, the program's or its own, is seeded."""

    again = False

    def __init__(self, sampler: Any, seed: int, place: tuple[int, int]) -> None:
        self.sampler, self.seed, self.place = sampler, seed, place
        self.length, self.name = len(sampler), f"sampler {type(sampler).__name__}"

    def __call__(self, epoch: int) -> list[Any]:
        seed = int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0])
        pythons, numpys = random.getstate(), np.random.get_state()
        with torch.random.fork_rng(devices=[]):
            try:
                random.seed(seed)
                np.random.seed(seed)
                torch.default_generator.manual_seed(seed)
                if isinstance(own := getattr(self.sampler, "generator", None), torch.Generator):
                    own.manual_seed(seed)
                return list(self.sampler)
            finally:
                random.setstate(pythons)
                np.random.set_state(numpys)


class _Tensors(Apart[Any]):
    def __init__(self, tensors: Generator[Any, None, None]) -> None:
        self._tensors = tensors

    def take(self) -> Any:
        return next(self._tensors)


class _Samples(torch.utils.data.IterableDataset[Any]):
    """The dataset of a DataLoader. It says how many samples there are, and their classes.

    If it weren't iterable, trainers would make a loader of their own of it, and lose the state.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        if isinstance(loader, _own.DataLoader):
            self.source = loader.source
        else:
            self.classes, self.class_to_idx = loader.classes, loader.class_to_idx

    def __len__(self) -> int:
        return self.loader.num_samples

    def __getitem__(self, index: Any) -> Any:
        return self.source[index]

    def __getattr__(self, name: str) -> Any:
        """What the dataset of one's own has."""
        if "source" not in self.__dict__ or name.startswith("__"):
            raise AttributeError(f"the dataset of {self.__dict__.get('loader')!r} has no {name!r}")
        return getattr(self.source, name)

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

    def begin(self, loader: Loader) -> None:
        """From now on, memory is registered as it is mapped."""
        if loader._pin is None and not (isinstance(loader, _own.DataLoader) and loader._objects):  # of pickles, most of the memory is empty
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
