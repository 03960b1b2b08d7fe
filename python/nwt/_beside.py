"""Loaders that start a server of their own on this host."""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, TypedDict

import numpy as np
import numpy.typing as npt

from . import _check as check
from . import _children, _loader, _result
from ._loader import Batch, Loader, _weakly
from ._program import Program, find
from ._shared import Shared
from ._wire import Error, State

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger("nwt")

Path = str | os.PathLike[str]
Flags = dict[str, Any]
TYPES = ("uint8", "uint16", "int32", "uint32", "int64")
PIXELS = ("uint8", "float32", "float16", "bfloat16")


class More(TypedDict, total=False):
    """The options of all loaders with a server of their own that torch's DataLoader doesn't have."""

    seed: int
    tune: bool
    step_time: float | None
    errors: int
    rank: int | None
    world_size: int | None
    prefetch: int
    patience: float
    program: Path | None


class Options(More, total=False):
    """The options of all loaders with a server of their own."""

    batch_size: int
    shuffle: bool
    drop_last: bool
    num_workers: int | None


class Pictures(Options, total=False):
    """The options of loaders of pictures."""

    size: int | Sequence[int]
    train: bool
    scale: Sequence[float]
    ratio: Sequence[float]
    flip: float
    color_jitter: float | Sequence[float]
    dtype: str
    normalize: bool | Sequence[Sequence[float]] | None
    transform: Callable[..., Any] | None
    timeout: float | None


DEFAULTS: dict[str, Any] = {
    "batch_size": 32, "shuffle": False, "seed": 0, "drop_last": False, "num_workers": None, "tune": False, "step_time": None, "errors": 0,
    "rank": None, "world_size": None, "prefetch": 4, "patience": 60.0, "program": None, "size": 224, "train": False, "scale": (0.08, 1), "ratio": (3 / 4, 4 / 3), "flip": 0.5,
    "color_jitter": 0, "dtype": "uint8", "normalize": None, "transform": None, "timeout": None, "ragged": None, "collate_fn": None, "object_bytes": 4 << 20,
    "weights": None, "draws": None, "replacement": True, "order": None, "lengths": None, "batch_tokens": None, "retryable": (), "worker_init_fn": None,
}  # fmt: skip

COMMON = """
    All loaders but nwt.Loader take:
    batch_size=32: samples per batch on this rank.
    shuffle=False: whether samples are shuffled, in another order for each epoch.
    seed=0: a number, 0 … 2**64-1, that decides the order and everything else that is random. Runs
        with the same seed are the same.
    drop_last=False: whether the last batch is left out if it isn't full.
    num_workers=None: how many samples are loaded at a time. None: as many as this rank has CPUs.
        0 means one worker. In torch, 0 means that this process loads the samples. Workers are threads,
        or processes if they run your Python code.
    tune=False: whether the loader measures at the start which number of workers is best. This takes some
        seconds, and num_workers is ignored. The number is kept in the user's cache folder.
        `num_workers` is then this number. `result` has the figures, and print(result) is their table.
    step_time=None: with tune=True, how many seconds a training step takes, up to 60. The loader then
        chooses the fewest workers at which such a step doesn't wait. The step must leave the CPUs free,
        as on a GPU. If it computes on the CPUs, training needs other numbers of workers than are measured.
    errors=0: how many samples per epoch may be bad. Bad samples are left out, logged, counted in
        `bad`, and listed in `bad_samples` (the first 10 000). One more is a SampleError.
    rank, world_size: the number of this process, from 0, and how many processes train together. By
        default, they come from torchrun, MPI, Slurm or torch.distributed. Without these, they are 0
        and 1.
    prefetch=4: how many batches are asked for ahead of the one in use.
    patience=60.0: how many seconds the loader waits for a batch before it raises an error.
    program: the path of nwt-serve, if it is neither in the wheel nor in PATH.

    You may keep a batch's arrays and write to them.
    """


def signature(init: Callable[..., None], options: type) -> inspect.Signature:
    """The signature of a class with its options written out, for help() and editors."""
    _, *own = (one for one in inspect.signature(init).parameters.values() if one.kind is not one.VAR_KEYWORD)
    kinds, here = options.__annotations__, [one.name for one in own]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=getattr(kinds[name], "__forward_arg__", kinds[name]))
        for name, default in DEFAULTS.items()
        if name in kinds and name not in here
    ]
    return inspect.Signature([*own, *more])


TELLS = f"""{_loader.TELLS}
    files: the file of each sample, if samples are files.
    result: what tuning found, or None without tune."""


class Local(Loader):
    """A loader with a server of its own: the program nwt-serve. The server ends with close, or with this process."""

    _options: type = Options
    result: _result.Result | None
    _labels: npt.NDArray[Any] | None = None  # by index, if they were given

    def __init_subclass__(cls) -> None:
        cls.__doc__ = (cls.__doc__ or "") + COMMON + TELLS  # help() shows it with each
        cls.__signature__ = signature(cls.__init__, cls._options)  # type: ignore[attr-defined]

    def __init__(self, given: tuple[Any, ...], flags: Flags, options: Mapping[str, Any], files: Sequence[IO[bytes]] = ()) -> None:
        options = dict(options)
        own = {name: options.pop(name) for name in ("errors", "rank", "world_size", "prefetch", "patience") if name in options}
        flags["batch"] = check.integer("batch_size", options.pop("batch_size", DEFAULTS["batch_size"]), 1, 2**24 - 1)
        flags["shuffle"] = check.boolean("shuffle", options.pop("shuffle", False))
        flags["seed"] = check.integer("seed", options.pop("seed", 0), 0, 2**64 - 1)
        flags["drop-last"] = check.boolean("drop_last", options.pop("drop_last", False))
        workers = options.pop("num_workers", None)
        flags["workers"] = 0 if workers is None else max(1, check.integer("num_workers", workers, 0, 1024))
        flags["tune"] = check.boolean("tune", options.pop("tune", False))
        step = options.pop("step_time", None)
        if step is not None and not flags["tune"]:
            raise ValueError(f"step_time={step!r}: is for tune=True, which finds the fewest workers at which such a step doesn't wait")
        flags["step"] = "0s" if step is None else f"{check.number('step_time', step, 1e-6, 60):.9f}s"
        program = options.pop("program", None)
        check.unknown(type(self).__name__, options, inspect.signature(type(self)).parameters)
        self._executable = find() if program is None else check.path("program", program)
        self._program = Program(self._executable, flags, files)
        try:
            super().__init__("shared:own", **own)
        except BaseException:
            self._program.close()
            raise
        self._program.said.pass_on()  # what it has said while it began
        self._args = given
        self.result = _result.told(self._transport.about)
        if self.result:
            logger.info("%s", self.result)

    def __repr__(self) -> str:
        about = [f"{self.num_samples} samples", self._batches_of(), f"{self.num_workers} worker{'' if self.num_workers == 1 else 's'}"]
        return f"nwt.{type(self).__name__}({self._source()}: {', '.join(about + self._of_rank())})"

    def _source(self) -> str:
        given = self._args[0][0]
        return repr(given if isinstance(given, (str, os.PathLike)) else given[0]) + ("" if isinstance(given, (str, os.PathLike)) or len(given) == 1 else " …")

    def _open(self) -> Any:
        program = self._program
        return Shared("nwt-serve", program.start, patience=self._patience, mapped=_weakly(self._mapped), waits=program.waits)

    @functools.cached_property
    def files(self) -> list[str]:
        """The file of each sample: files[batch["index"][0]] is the file of a batch's first sample.

        If samples aren't files, the list is empty.
        """
        self._check()
        return [os.fsdecode(one) for one in self._transport.more("files").split(b"\0")[:-1]]

    @functools.cached_property
    def _marks(self) -> str:
        """The sizes and times of all files, hashed."""
        return str(self._transport.more("marks").decode())

    def state_dict(self) -> State:
        """As in Loader. In mid-epoch, the state also has a hash of the files' sizes and times."""
        state = super().state_dict()
        if state["samples"] and self._closed is None:
            state["files"] = self._marks
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As in Loader. Raises nwt.Error if files have changed since the state was saved."""
        start = check.state(state)
        self._check()
        if start["samples"] and state.get("files") not in (None, self._marks):
            raise Error(
                "state: files have changed since it was saved (their sizes or times), so the rest of its epoch may be other samples: "
                "begin the next epoch (set_epoch), or go on nevertheless after del state['files']",
                "state-data",
            )
        super().load_state_dict(start)

    def _next(self, iteration: Any) -> Batch:
        batch = super()._next(iteration)
        self._program.said.pass_on()
        return batch

    def _made(self, arrays: Batch) -> Batch:
        batch = super()._made(arrays)
        if self._labels is not None:
            batch["label"] = self._labels[batch["index"]]
        return batch

    def close(self) -> None:
        super().close()
        if os.getpid() == self._pid:
            self._program.said.pass_on()
            self._program.end()


def _pictures(kind: str, options: dict[str, Any]) -> Flags:
    """Takes the options of pictures out of options, and returns them as flags."""
    size = options.pop("size", 224)
    sides = list(size) if hasattr(size, "__len__") and not isinstance(size, str) else [size, size]
    if len(sides) != 2:
        raise ValueError(f"size={size!r}: must be a number of pixels, or (height, width)")
    train = check.boolean("train", options.pop("train", False))
    flags: Flags = {"size": "x".join(str(check.integer("size", side, 1, 2**16)) for side in sides), "train": train}
    random = {name: value for name in ("scale", "ratio", "flip", "color_jitter") if (value := options.pop(name, None)) is not None}
    if random and not train:
        raise ValueError(f"{kind}: {next(iter(random))} is for train=True: otherwise the middle of a picture is taken")
    for name, low, high in (("scale", 1e-6, 1), ("ratio", 1e-3, 1e3)):
        if name in random:
            first, second = check.numbers(name, random[name], 2, low, high)
            if first > second:
                raise ValueError(f"{name}={random[name]}: the first must not be above the second")
            flags[name] = f"{first},{second}"
    if "flip" in random:
        flags["flip"] = check.number("flip", 0.5 if random["flip"] is True else random["flip"], 0, 1)
    if "color_jitter" in random:
        jitter = random["color_jitter"] if hasattr(random["color_jitter"], "__len__") else [random["color_jitter"]] * 3
        amounts = check.numbers("color_jitter", [*jitter, 0] if len(jitter) == 3 else jitter, 4, 0, 1e3)
        check.number("color_jitter's hue", amounts[3], 0, 0.5)
        flags["color-jitter"] = ",".join(map(str, amounts))
    return flags | _numbers_of_pixels(options)


IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _transform(kind: str, options: dict[str, Any], files: list[IO[bytes]]) -> Flags:
    """Takes transform and timeout out of options. nwt-serve inherits the files that are added."""
    transform, timeout = options.pop("transform", None), options.pop("timeout", None)
    if transform is None:
        if timeout is not None:
            raise ValueError(f"{kind}: timeout is for transform: it bounds the seconds per picture")
        return {}
    if not callable(transform):
        raise TypeError(f"transform={transform!r:.200}: must be a function of a picture, uint8 [height, width, 3], or of that and a numpy.random.Generator")
    if options.get("normalize") not in (None, False):
        raise ValueError(f"{kind}: normalize and transform: what transform returns stays as it is: write (image / 255 - mean) / std in it, or on the GPU")
    if options.get("dtype") is not None:
        raise ValueError(f"{kind}: dtype and transform: the type is that of what transform returns: write image.astype(…) in it")
    return {"transform": _children.told({"transform": transform, "workers": _children.known(options)}, timeout, files)}


def _numbers_of_pixels(options: dict[str, Any]) -> Flags:
    normalize, dtype = options.pop("normalize", None), options.pop("dtype", None)
    if normalize is False:
        normalize = None
    name = "float32" if dtype is None and normalize is not None else check.dtype(dtype or "uint8", PIXELS)
    if normalize is None:
        return {"dtype": name}
    if name == "uint8":
        raise ValueError("normalize makes fractions: leave dtype out, or dtype='float32', 'float16' or 'bfloat16'")
    if normalize is True:
        normalize = IMAGENET
    parts = list(normalize) if hasattr(normalize, "__len__") and not isinstance(normalize, str) else []
    if len(parts) != 2:
        raise TypeError(f"normalize={normalize!r}: must be True (ImageNet's) or (mean, std), each three numbers for values of 0 … 1")
    mean, std = (check.numbers(f"normalize's {what}", part, 3, low, 1e3) for what, part, low in (("mean", parts[0], -1e3), ("std", parts[1], 1e-6)))
    return {"dtype": name, "normalize": ",".join(map(str, mean + std))}


def _classes(names: Sequence[str] | None) -> list[str]:
    several = list(names) if isinstance(names, Iterable) and not isinstance(names, str) else [names] if names else []
    if names is not None and not (several and all(isinstance(one, str) and one for one in several)):
        raise TypeError(f"classes={names!r:.200}: must be names of folders, such as train.classes")
    return several


def _numbers(labels: npt.ArrayLike | None, listed: list[str]) -> npt.NDArray[Any] | None:
    """Returns labels as an array with one row per file."""
    if labels is None:
        return None
    try:
        numbers = np.asarray(labels)
    except (TypeError, ValueError) as error:
        raise TypeError(f"labels: {error}") from None
    if numbers.dtype.kind not in "biuf" or numbers.dtype.itemsize > 8 or not numbers.ndim:
        raise TypeError(f"labels must be numbers, one or several per path (number names by sorted(set(names)).index): {labels!r:.200}")
    if len(numbers) != len(listed):
        raise ValueError(f"labels: there are {len(numbers)}, but {len(listed)} paths")
    return numbers.astype(numbers.dtype.newbyteorder("="))


class _Pictured(Local):
    """A loader of pictures."""

    _options = Pictures

    def __init__(self, given: tuple[Any, ...], flags: Flags, options: dict[str, Any]) -> None:
        self._files: list[IO[bytes]] = []
        try:
            kind, more = type(self).__name__, dict(options)
            flags |= _transform(kind, more, self._files)
            super().__init__(given, flags | _pictures(kind, more), more, self._files)
        except BaseException:
            self._close_files()
            raise

    def close(self) -> None:
        super().close()
        self._close_files()

    def _close_files(self) -> None:
        for file in self._files:
            file.close()


class ImageFolder(_Pictured):
    """The pictures of the folder root with one folder per class, as torchvision's ImageFolder lists them.

    batch["image"] is uint8 [n, 3, height, width], or of type dtype. batch["label"], int64 [n], has the
    number of each sample's class in `classes`. batch["index"], int64 [n], has the number of each
    sample. files[index] is the file of a sample.
    size=224: pixels, one number or (height, width).
    train=False: whether a random part of each picture is taken, as in torchvision. If not, the
        picture is resized to 8/7 of size, and its middle is taken. The next four arguments are only
        for train=True.
    scale=(0.08, 1): the least and the greatest share of the picture's area that the part has.
    ratio=(3/4, 4/3): the least and the greatest width / height of the part.
    flip=0.5: the probability that the part is mirrored.
    color_jitter=0: how much colours change: one number, or brightness, contrast, saturation and hue.
    dtype="uint8": the type of pixels. With "float32", "float16" and "bfloat16", pixels are 0 … 1, as
        torchvision's ToTensor makes them. NumPy has no bfloat16: an array holds the bits as uint16, and
        nwt.torch makes bfloat16 tensors.
    normalize=None: (mean, std), each three numbers, or True for ImageNet's values. Pixels are
        then (value − mean) / std. Their type is float32 if dtype isn't given.
    transform: your own function of each picture, called last. It gets uint8 [height, width, 3]. If it
        takes a second argument, it also gets a numpy.random.Generator. It returns an array or a
        tensor, which becomes batch["image"]. It may also return a dict of several, which keep their
        names. Shapes and types must be the same for all pictures. Workers are then processes of this
        Python; help(nwt.DataLoader) says what they know of your script, and what they seed.
    timeout: how many seconds transform may take. After that, its process is killed and the sample is bad.
    classes: the names of the classes in the order of their numbers, such as train.classes. By default,
        they are the names of the folders, sorted.
    """

    def __init__(self, root: Path, *, classes: Sequence[str] | None = None, **options: Unpack[Pictures]) -> None:
        flags = {"images": [os.path.join(check.path("root", root), "")], "class": _classes(classes)}
        super().__init__(((root,), {"classes": classes, **options}), flags, dict(options))


class Images(_Pictured):
    """Pictures from a list of paths: sample number i is paths[i].

    batch["image"] is uint8 [n, 3, height, width], and batch["index"] is int64 [n].
    labels: numbers, one or several per path, in the same order. batch["label"] has the labels of
        the batch's samples.
    The other arguments are as in ImageFolder, without classes.
    """

    def __init__(self, paths: Iterable[Path], labels: npt.ArrayLike | None = None, **options: Unpack[Pictures]) -> None:
        listed = check.paths("paths", paths)
        if os.path.isdir(listed[0]):
            raise ValueError(f"paths={listed[0]!r}: must be a list of files; ImageFolder takes a folder")
        numbers = _numbers(labels, listed)
        super().__init__(((listed,), {"labels": numbers, **options}), {"images": listed}, dict(options))
        self._labels = numbers


class Files(Local):
    """The bytes of files of any kind. They come from a folder with one folder per class, or from a list of paths.

    batch["data"] is uint8 [n, longest], and batch["data.len0"] has the lengths. batch["index"] is
    int64 [n]. If paths is a folder, batch["label"] is int64 [n]. If paths is a list, batch["label"]
    has the labels that you give.
    extensions: which files of a folder are taken, such as [".wav", ".flac"]. By default, all are taken.
    classes: as in ImageFolder.
    labels: as in Images, if paths is a list.
    """

    def __init__(
        self,
        paths: Path | Iterable[Path],
        *,
        extensions: Sequence[str] = (),
        classes: Sequence[str] | None = None,
        labels: npt.ArrayLike | None = None,
        **options: Unpack[Options],
    ) -> None:
        listed = check.paths("paths", paths)
        if extensions and not os.path.isdir(listed[0]):
            raise ValueError("extensions is for a folder, not for a list of paths")
        if labels is not None and os.path.isdir(listed[0]):
            raise ValueError(f"labels is for a list of paths: the files of {listed[0]!r} have the labels of their folders")
        numbers = _numbers(labels, listed)
        flags = {"files": listed, "class": _classes(classes), "extensions": extensions if isinstance(extensions, str) else ",".join(extensions)}
        super().__init__(((listed,), {"extensions": extensions, "classes": classes, "labels": numbers, **options}), flags, dict(options))
        self._labels = numbers


class WebDataset(_Pictured):
    """Pictures in tar shards, in WebDataset's format.

    The pictures have numbers, so any order and any number of ranks is possible.
    batch["image"] is uint8 [n, 3, height, width], and batch["index"] is int64 [n]. If the samples have
    .cls files, batch["label"] is int64 [n].
    shards: one path or a list of paths. A path with braces, such as train-{000..146}.tar, is several
        paths. The shards must not be compressed.
    The other arguments are as in ImageFolder, without classes.
    """

    def __init__(self, shards: Path | Iterable[Path], **options: Unpack[Pictures]) -> None:
        listed = check.paths("shards", shards)
        if os.path.isdir(listed[0]):
            raise ValueError(f"shards={listed[0]!r}: must be tar files, such as {os.path.join(listed[0], 'train-{000..146}.tar')}")
        super().__init__(((listed,), dict(options)), {"shards": listed}, dict(options))


class Tokens(Local):
    """Windows of files that hold nothing but tokens.

    batch["tokens"] is int64 [n, length + 1]: the inputs are [:, :-1], and the targets are [:, 1:].
    batch["index"] is int64 [n]. In a file, a window begins every `length` tokens. Tokens at the end
    of a file that don't fill a window are left out.
    length=1024: how many inputs a window has. It has as many targets.
    dtype="uint16": the type of a token in the files: uint8, uint16, int32, uint32 or int64, little-endian.
    """

    def __init__(self, files: Path | Iterable[Path], *, length: int = 1024, dtype: str = "uint16", **options: Unpack[Options]) -> None:
        listed = check.paths("files", files)
        name = check.dtype(dtype, TYPES)
        flags = {"tokens": listed, "length": check.integer("length", length, 1, 2**24), "dtype": name}
        super().__init__(((listed,), {"length": length, "dtype": name, **options}), flags, dict(options))
