"""Checks arguments. The errors name them as they are named in Python."""

from __future__ import annotations

import difflib
import glob
import operator
import os
from collections.abc import Iterable, Mapping
from typing import Any

from ._wire import State

# What PyTorch's users write first, and what it is here.
HINTS = {
    "world": "it is world_size",
    "root": "the paths are the first argument",
    "num_classes": "it is len(loader.classes)",
    "worker": "it is num_workers",
    "workers": "it is num_workers",
    "transform": "it is an argument of nwt.ImageFolder, nwt.Images and nwt.WebDataset, called with each picture; the samples of nwt.DataLoader are what you return",
    "transforms": "it is transform, a function of each picture",
    "mean": "write normalize=(mean, std), each three numbers for values of 0 … 1, or normalize=True for ImageNet's",
    "std": "write normalize=(mean, std), each three numbers for values of 0 … 1, or normalize=True for ImageNet's",
    "normalize": "it is an argument of nwt.ImageFolder, nwt.Images and nwt.WebDataset",
    "interpolation": "pictures are resized bilinearly, with antialias",
    "antialias": "pictures are resized bilinearly, with antialias",
    "crop_pct": "the middle is 7/8 of the resized picture: size=224 resizes to 256",
    "resize": "it is size; without train, a picture is first resized to 8/7 of it",
    "crop": "it is size",
    "weights": "it is an argument of nwt.DataLoader; other samples aren't weighted: weight the loss by labels, or draw by sampler.Weighted in Go",
    "cache": "nothing to set: what was read stays in the system's page cache, as far as memory allows",
    "augment": "it is train=True, with scale, ratio, flip and color_jitter, or transform, your own function of each picture",
    "split": "open the folder of that part, such as data/train",
    "download": "nwt reads what is on this machine",
    "target_transform": 'give nwt.Images your labels, or look them up by the sample: labels[batch["index"]]',
    "pin_memory": "write nwt.torch.DataLoader(loader, pin_memory=True)",
    "pin_memory_device": "write nwt.torch.DataLoader(loader, pin_memory=True)",
    "labels": 'those of ImageFolder are its folders; nwt.Images and nwt.Files take labels, or look them up: labels[batch["index"]]',
    "label": "it is labels, of nwt.Images and nwt.Files",
    "targets": "it is labels, of nwt.Images and nwt.Files",
    "loader": "nwt-serve decodes pictures; nwt.Files brings the bytes of other files",
    "is_valid_file": "nwt.Images takes the paths that you choose",
    "collate_fn": "samples are loaded straight into their batch; combine those of a batch in the loop",
    "sampler": "shuffle and seed decide the order (in nwt.DataLoader also order, weights or lengths), rank and world_size which part of it comes here",
    "batch_sampler": "batch_size, shuffle and seed decide which samples are in a batch, in nwt.DataLoader also order, or lengths with batch_tokens",
    "generator": "seed=42 decides all that is drawn at random",
    "worker_init_fn": "it is an argument of nwt.DataLoader; seeds need none: each sample has its own",
    "multiprocessing_context": "nothing to choose: workers are threads, or processes that nwt makes if they run your Python",
    "persistent_workers": "workers live until the loader is closed",
    "prefetch_factor": "prefetch is the number of batches that are asked for ahead",
    "timeout": "patience is for how many seconds without an answer it asks again",
    "in_order": "batches come in order",
    "samples": "files[i] is the file of sample i, and a batch has its label",
    "imgs": "files[i] is the file of sample i, and a batch has its label",
    "dataset": "num_samples is the number of samples; nwt.torch.DataLoader(loader) has a dataset",
    **dict.fromkeys(("order", "lengths", "batch_tokens", "draws", "replacement", "ragged", "retryable", "object_bytes"), "it is an argument of nwt.DataLoader"),
}


def unknown(where: str, names: Iterable[str], known: Iterable[str] = ()) -> None:
    """Raises TypeError if `names` has any: they are no arguments of `where`. Those in `known` are."""
    for name in names:
        raise TypeError(f"{where} has no argument {name!r}{hint(name, known)}")


def hint(name: str, known: Iterable[str]) -> str:
    """What was meant by a name that isn't among those that are known."""
    alike = difflib.get_close_matches(name, known, 1)
    said = HINTS.get(name) or (f"did you mean {alike[0]!r}?" if alike else "")
    return f": {said}" if said else ""


def dtype(value: Any, names: Iterable[str]) -> str:
    """Returns the name of an element type. `value` is this name, NumPy's type or torch's."""
    name = (getattr(value, "__name__", None) or str(value)).removeprefix("torch.")
    if name not in names:
        raise ValueError(f"dtype={value!r}: must be one of {', '.join(names)}")
    return name


def integer(name: str, value: Any, low: int, high: int = 2**63 - 1) -> int:
    try:
        number = operator.index(value)  # NumPy's too
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name}={value!r}: must be an integer")
    if not low <= number <= high:
        raise ValueError(f"{name}={value!r}: must be from {low} to {high}" if high != 2**63 - 1 else f"{name}={value!r}: must be at least {low}")
    return number


def boolean(name: str, value: Any) -> bool:
    if type(value).__name__ not in ("bool", "bool_"):  # NumPy's too
        raise TypeError(f"{name}={value!r}: must be True or False" + ("; the order's seed is seed" if name == "shuffle" else ""))
    return bool(value)


def number(name: str, value: Any, low: float, high: float) -> float:
    try:
        real = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}={value!r}: must be a number") from None
    if not low <= real <= high:
        raise ValueError(f"{name}={value!r}: must be from {low:g} to {high:g}")
    return real


def numbers(name: str, value: Any, count: int, low: float, high: float) -> list[float]:
    """Returns `value` as a list of numbers, as many as `count` says."""
    try:
        several = list(value)
    except TypeError:
        several = []
    if len(several) != count:
        raise TypeError(f"{name}={value!r}: must be {count} numbers")
    return [number(name, one, low, high) for one in several]


def path(name: str, value: Any) -> str:
    try:
        text = os.path.expanduser(os.fsdecode(value))
    except TypeError:
        raise TypeError(f"{name}={value!r:.200}: must be a path") from None
    if not text or "\0" in text:
        raise ValueError(f"{name}={value!r:.200}: must be a path")
    if "://" in text:
        raise ValueError(f"{name}={text!r:.200}: must be a path on this machine: copy or mount the files, or write a server in Go that reads the store")
    return text


def paths(name: str, value: Any) -> list[str]:
    """A list of at least one path."""
    if not isinstance(value, (os.PathLike, Iterable)):
        raise TypeError(f"{name}={value!r:.200}: must be paths")
    if isinstance(value, (str, bytes, os.PathLike)):
        several = [path(name, value)]
        if glob.has_magic(several[0]) and not os.path.exists(several[0]):
            raise ValueError(f"{name}={several[0]!r:.200}: must be paths: write sorted(glob.glob(…))")
    else:
        several = [path(f"{name}[{i}]", one) for i, one in enumerate(value)]
    if not several:
        raise ValueError(f"{name}: must be at least one path")
    return several


def addresses(value: Any) -> list[str]:
    several = [value] if isinstance(value, str) else list(value)
    if not several or not all(isinstance(one, str) and one for one in several):
        raise ValueError(f"addresses={value!r}: must be host:port or shared:PATH, or a list of such")
    if len(several) > 1 and any(one.startswith("shared:") for one in several):
        raise ValueError(f"addresses={value!r}: shared:PATH is a server of this host, and stands alone")
    if several[0].startswith("shared:"):
        path = os.fsencode(several[0][len("shared:") :])
        if not 1 <= len(path) <= 107 or 0 in path:
            raise ValueError(f"addresses={value!r:.200}: the path of a socket must have 1 … 107 bytes, none of them 0; it has {len(path)}")
    return several


def token(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and value and value.isascii() and value.isprintable() and value.strip() == value):
        raise ValueError("token: must be printable ASCII, not empty, without a space at either end")
    return value


def state(value: Any) -> State:
    """A state of an epoch, as state_dict returns it."""
    if not isinstance(value, Mapping) or not {"epoch", "samples"} <= value.keys() or not isinstance(value.get("order", ""), str):
        raise ValueError(f"state={value!r:.200}: must be what state_dict returned, with epoch and samples")
    try:
        place = State(epoch=integer("state['epoch']", value["epoch"], 0), samples=integer("state['samples']", value["samples"], 0))
    except TypeError as error:
        raise ValueError(str(error)) from None
    if "order" in value:
        place["order"] = value["order"]
    return place
