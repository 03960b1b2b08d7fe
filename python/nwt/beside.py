"""Servers of one's own, beside this process."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, TypedDict

from . import check
from .loader import Loader
from .wire import Error

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger("nwt")

Path = str | os.PathLike[str]
Flags = dict[str, Any]
TYPES = {"uint8": 1, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8}


class Options(TypedDict, total=False):
    """What all loaders with a server of their own take."""

    batch_size: int
    shuffle: bool
    seed: int
    drop_last: bool
    num_workers: int
    tune: bool
    errors: int
    rank: int | None
    world_size: int | None
    prefetch: int
    patience: float
    program: Path | None


class Pictures(Options, total=False):
    """What becomes of pictures."""

    size: int | Sequence[int]
    train: bool
    scale: Sequence[float]
    ratio: Sequence[float]
    flip: float
    color_jitter: float | Sequence[float]


class Local(Loader):
    """A loader with a server of its own: the program nwt-serve, which ends with close, or with this process.

    batch_size: samples per batch, of this rank.
    shuffle: whether each epoch has another order. seed, 0 … 2**64-1, decides it, and all that is drawn at random.
    drop_last: whether what doesn't fill a last batch is left out.
    num_workers: how many samples are loaded at a time; 0: as many as this rank has CPUs.
    tune: whether their number is measured at the start: some seconds, and kept in the user's cache
        folder. `result` is the table.
    program: the program, if it is neither in the wheel nor in PATH.
    The other arguments are those of Loader.
    """

    result: str  # the table of what was measured; empty without tune

    def __init__(self, given: tuple[Any, ...], flags: Flags, options: Mapping[str, Any]) -> None:
        options = dict(options)
        own = {name: options.pop(name) for name in ("errors", "rank", "world_size", "prefetch", "patience") if name in options}
        self._program: _Program | None = None
        seed = check.integer("seed", options.pop("seed", 0), 0, 2**64 - 1)
        flags["batch"] = check.integer("batch_size", options.pop("batch_size", 64), 1, 2**24)
        flags["shuffle" if check.boolean("shuffle", options.pop("shuffle", False)) else "seed"] = seed
        flags["drop-last"] = check.boolean("drop_last", options.pop("drop_last", False))
        flags["workers"] = check.integer("num_workers", options.pop("num_workers", 0), 0, 1024)
        flags["tune"] = check.boolean("tune", options.pop("tune", False))
        program = options.pop("program", None)
        check.unknown(type(self).__name__, options)
        self._flags, self._named = flags, find() if program is None else check.path("program", program)
        super().__init__("shared:own", **own)
        self._args = given
        self.drop_last = bool(flags["drop-last"])

    def _open(self) -> Any:
        self._program = _Program(self._named, self._flags)
        told = self._program.told
        self.result = told.get("result", "")
        if self.result:
            logger.info("%s", self.result)
        self._where, self._token = [told["address"]], self._program.token
        try:
            return super()._open()
        except BaseException:
            self._program.close()
            raise

    def _place(self, rank: int, world_size: int) -> None:
        try:
            super()._place(rank, world_size)
        except BaseException:
            self.close()
            raise
        if self._program:
            self.classes = self._program.told.get("classes") or []

    @property
    def files(self) -> list[str]:
        """The file of each sample: files[batch["index"][0]] is that of a batch's first. Empty where a sample is no file."""
        return self._program.files() if self._program else []

    def _ended(self) -> str | None:
        return self._program.again(self._came) if self._program else None

    def close(self) -> None:
        super().close()
        if self._program and os.getpid() == self._pid:
            self._program.close()


def _pictures(kind: str, options: dict[str, Any]) -> Flags:
    """The flags of what becomes of pictures, without their options."""
    size = options.pop("size", 224)
    if hasattr(size, "__len__"):
        height, width = (check.integer("size", side, 1, 2**16) for side in size) if len(size) == 2 else _not_a_size(size)
    else:
        height = width = check.integer("size", size, 1, 2**16)
    train = check.boolean("train", options.pop("train", False))
    flags: Flags = {"size": f"{height}x{width}", "train": train}
    random: Flags = {}
    if (scale := options.pop("scale", None)) is not None:
        random["scale"] = check.numbers("scale", scale, 2, 1e-6, 1)
    if (ratio := options.pop("ratio", None)) is not None:
        random["ratio"] = check.numbers("ratio", ratio, 2, 1e-3, 1e3)
    if (flip := options.pop("flip", None)) is not None:
        random["flip"] = (0.5 if flip else 0.0) if isinstance(flip, bool) else check.number("flip", flip, 0, 1)
    if (jitter := options.pop("color_jitter", None)) is not None:
        if not hasattr(jitter, "__len__"):
            jitter = [jitter] * 3
        amounts = check.numbers("color_jitter", [*jitter, 0][:4] if len(jitter) == 3 else jitter, 4, 0, 1e3)
        amounts[3] = check.number("color_jitter's hue", amounts[3], 0, 0.5)
        random["color-jitter"] = amounts
    for name in random:
        if not train:
            raise ValueError(f"{kind}: {name.replace('-', '_')} is for train=True: otherwise the middle of a picture is taken")
    for name in ("scale", "ratio"):
        if name in random and random[name][0] > random[name][1]:
            raise ValueError(f"{name}={random[name]}: the first must not be above the second")
    return flags | random


def _not_a_size(size: Any) -> Any:
    raise ValueError(f"size={size!r}: must be a number of pixels, or (height, width)")


class ImageFolder(Local):
    """The pictures of a folder with one folder per class, as torchvision's ImageFolder lists them.

    batch["image"] is uint8 [n, 3, height, width], batch["label"] int64 [n], the class's number in
    `classes`, and batch["index"] int64 [n], the sample's number: files[index] is its file.
    size: pixels, one number or (height, width).
    train: whether a part is cropped at random, of the shares scale of the picture's area and the
        ratios ratio of width to height, mirrored with probability flip, and its colours changed by
        color_jitter, as in torchvision: one number, or brightness, contrast, saturation and hue.
        Otherwise the middle is taken.
    classes: the names of the classes in the order of their numbers, such as train.classes.
    """

    def __init__(self, path: Path, *, classes: Sequence[str] | None = None, **options: Unpack[Pictures]) -> None:
        given = (path,), {"classes": classes, **options}
        more: dict[str, Any] = dict(options)
        flags = {"images": "./" + text if (text := check.path("path", path)).startswith("@") else text, **_pictures("ImageFolder", more)}
        if classes is not None:
            flags["classes"] = check.paths("classes", [classes] if isinstance(classes, str) else classes)
        super().__init__(given, flags, more)


class Images(Local):
    """Pictures by their paths, in this order.

    batch["image"] is uint8 [n, 3, height, width], and batch["index"] int64 [n]: labels[batch["index"]]
    are yours. size, train, scale, ratio, flip and color_jitter are as in ImageFolder.
    """

    def __init__(self, paths: Iterable[Path], **options: Unpack[Pictures]) -> None:
        if check.is_folder(paths):
            raise ValueError(f"paths={paths!r}: must be a list of files; ImageFolder takes a folder")
        listed, more = check.paths("paths", paths), dict(options)
        super().__init__(((listed,), dict(options)), {"images": listed, **_pictures("Images", more)}, more)


class Files(Local):
    """The bytes of files of any kind: of those of a folder with one folder per class, or by their paths.

    batch["data"] is uint8 [n, longest], with the lengths in batch["data.len0"], batch["index"] int64
    [n], and of a folder batch["label"] int64 [n].
    extensions: of a folder, which files are taken, such as [".wav", ".flac"]; by default all.
    classes: as in ImageFolder.
    """

    def __init__(
        self, paths: Path | Iterable[Path], *, extensions: Sequence[str] = (), classes: Sequence[str] | None = None, **options: Unpack[Options]
    ) -> None:
        given = (paths,), {"extensions": extensions, "classes": classes, **options}
        flags: Flags = {"files": check.path("paths", paths) if check.is_folder(paths) else check.paths("paths", paths)}
        if extensions:
            flags["extensions"] = ",".join([extensions] if isinstance(extensions, str) else extensions)
        if classes is not None:
            flags["classes"] = check.paths("classes", [classes] if isinstance(classes, str) else classes)
        super().__init__(given, flags, dict(options))


class WebDataset(Local):
    """The pictures in tar shards in WebDataset's format, each by its number, so that any order and any number of ranks can be had.

    batch["image"] is uint8 [n, 3, height, width], batch["index"] int64 [n], and batch["label"] int64
    [n] if the samples have .cls files. shards: paths, one with braces, such as train-{000..146}.tar,
    or a list; not compressed. The other arguments are as in ImageFolder.
    """

    def __init__(self, shards: Path | Iterable[Path], **options: Unpack[Pictures]) -> None:
        listed, more = check.paths("shards", shards), dict(options)
        super().__init__(((listed,), dict(options)), {"shards": listed, **_pictures("WebDataset", more)}, more)


class Tokens(Local):
    """Windows of files that hold nothing but tokens.

    batch["tokens"] is int64 [n, length + 1]: inputs are [:, :-1], targets [:, 1:]; and batch["index"]
    int64 [n]. A file's windows begin length tokens apart; what doesn't fill one is left out.
    dtype: uint8, uint16, int32, uint32 or int64, little-endian.
    """

    def __init__(self, files: Path | Iterable[Path], *, length: int = 1024, dtype: str = "uint16", **options: Unpack[Options]) -> None:
        listed = check.paths("files", files)
        name = getattr(dtype, "__name__", None) or str(dtype)  # np.uint16, or its name
        if name not in TYPES:
            raise ValueError(f"dtype={dtype!r}: must be one of {', '.join(TYPES)}")
        flags = {"tokens": listed, "length": check.integer("length", length, 1, 2**24), "dtype": name}
        super().__init__(((listed,), {"length": length, "dtype": name, **options}), flags, dict(options))


def find() -> str:
    """The program of the wheel, or another nwt-serve."""
    name = "nwt-serve.exe" if sys.platform == "win32" else "nwt-serve"
    own = os.path.join(os.path.dirname(__file__), "bin", name)
    found = own if os.path.exists(own) else shutil.which(name)
    if not found:
        raise Error(
            "the program nwt-serve is missing: install a wheel of nwt for this platform, "
            "or go install github.com/nwt-go/nwt/serve/cmd/nwt-serve@latest and have it in PATH, or give program="
        )
    return found


class _Program:
    """The program nwt-serve, until close or until this process ends."""

    def __init__(self, program: str, flags: Flags) -> None:
        self.token = os.urandom(16).hex()
        self._shared = f"@nwt-{os.urandom(16).hex()}" if sys.platform == "linux" else ""
        self._program, self._flags, self._listen = program, flags, "127.0.0.1:0"
        self._came = -1  # what had come when it was started last
        self._starts = 0  # since then
        self._start()

    def _start(self) -> None:
        folder = tempfile.mkdtemp(prefix="nwt-")  # only until the program has begun, where open files can be removed
        try:
            flags = {"listen": self._listen, "parent": os.getpid(), **self._flags}
            texts = {"about-file": None, "token-file": self.token}
            for name, value in self._flags.items():
                if isinstance(value, list) and isinstance(value[0], str):
                    texts[name] = "".join(one + "\0" for one in value)
            for name, text in texts.items():
                path = os.path.join(folder, name)
                if text is not None:
                    with open(path, "wb") as file:
                        file.write(os.fsencode(text))
                flags[name] = path if name.endswith("-file") or name == "classes" else "@" + path
            if self._shared:
                flags["shared"] = self._shared
            said = os.path.join(folder, "said")
            with open(said, "ab") as out:
                process = subprocess.Popen(
                    [self._program, *(f"-{name}={_text(value)}" for name, value in flags.items())],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,  # Ctrl-C is for this process
                )
            self._process, self._said = process, open(said, "rb")
            files: list[IO[bytes]] = [self._said]
            self.close = weakref.finalize(self, _stop, process, files, folder, os.getpid())
            while not os.path.exists(flags["about-file"]):
                if why := self.ended():
                    raise Error(why)
                time.sleep(0.005)
            self._about = open(flags["about-file"], "rb")
            files.append(self._about)
            self.told: dict[str, Any] = json.loads(self._about.readline())
        except BaseException:
            if hasattr(self, "close"):
                self.close()
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._listen = self.told["address"]
        if self._shared:
            self.told["address"] = "shared:" + self._shared

    def files(self) -> list[str]:
        """The paths that follow what the program told, each with a zero."""
        self._about.seek(0)
        self._about.readline()
        return [os.fsdecode(one) for one in self._about.read().split(b"\0")[:-1]]

    def ended(self) -> str | None:
        """Why the program has ended; None while it runs."""
        status = self._process.poll()
        if status is None:
            return None
        if self._said.closed:
            return "the loader is closed"
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - 2000))
        said = self._said.read().decode(errors="replace").strip()
        return f"nwt-serve has ended, {'by signal' if status < 0 else 'with status'} {abs(status)}: {said}"

    def again(self, came: int) -> str | None:
        """Starts the program if it has ended, but not for ever if nothing comes of it."""
        if not (why := self.ended()) or self._said.closed:
            return why
        self._starts = self._starts + 1 if came == self._came else 1
        if self._starts > 3:
            return f"{why} (it was started {self._starts} times without loading a batch)"
        self._came = came
        logger.warning("starting it again: %s", why)
        self.close()
        try:
            self._start()
        except Error as error:
            return str(error)
        return None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _stop(process: subprocess.Popen[bytes], files: list[IO[bytes]], folder: str, pid: int) -> None:
    if os.getpid() != pid:
        return  # a fork's exit doesn't end it
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for file in files:
        file.close()
    shutil.rmtree(folder, ignore_errors=True)
