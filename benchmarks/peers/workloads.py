"""What every peer loads: fourteen workloads, the data behind them, and the proof that an epoch is right."""

from dataclasses import dataclass

import numpy as np

PAD = 4  # pixels of zeros around an image before it is cropped back to 32 x 32
MEAN = np.array([0.4914, 0.4822, 0.4465], np.float32)[:, None, None]
STD = np.array([0.2470, 0.2435, 0.2616], np.float32)[:, None, None]
SCALE = 1 / (255 * STD)  # (pixel/255 - mean) / std as one multiplication and one addition
SHIFT = -MEAN / STD
SECONDS_PER_WAIT = 0.001
SLEEPS = {  # of a sample, in seconds, by its index
    "wait": lambda i: SECONDS_PER_WAIT,
    "tail": lambda i: 0.1 if i % 100 == 0 else 0.001,
    "pauses": lambda i: 0.002,
}


@dataclass(frozen=True)
class Workload:
    samples: int
    batch: int
    dtype: type
    shape: tuple  # of one sample
    pauses: int = 0  # batches from one pause of the training step to the next; 0: none
    pause: float = 0  # seconds


WORKLOADS = {
    "augment": Workload(50_000, 128, np.float32, (3, 32, 32)),
    "raw": Workload(50_000, 128, np.uint8, (3, 32, 32)),
    "wait": Workload(1_000, 64, np.float32, ()),  # value: the index
    "empty": Workload(50_000, 128, np.float32, ()),  # value: the index
    "tail": Workload(128_000, 64, np.float32, ()),  # value: the index
    "pauses": Workload(128_000, 64, np.float32, (), pauses=32, pause=0.27),  # value: the index
    "photos": Workload(384, 64, np.float32, (3, 224, 224)),  # JPEG files: photos.py
    "bytes": Workload(384, 64, np.uint8, (3, 224, 224)),  # the same, not normalised
    "large": Workload(128, 64, np.float32, (3, 224, 224)),  # of 3000 x 2000
    "largebytes": Workload(128, 64, np.uint8, (3, 224, 224)),
    "shards": Workload(1_536, 64, np.float32, (3, 224, 224)),  # the same with their numbers: shards.py
    "own-small": Workload(50_000, 64, np.uint8, (3_072,)),  # own.py
    "own-large": Workload(10_000, 64, np.uint8, (150_528,)),
    "own-pillow": Workload(384, 64, np.uint8, (3, 224, 224)),
    "own-numpy": Workload(384, 64, np.uint8, (3, 224, 224)),
}
IMAGES, PHOTOS = ("augment", "raw"), ("photos", "bytes", "large", "largebytes", "shards")
OWN = ("own-small", "own-large", "own-pillow", "own-numpy")


def images():
    """uint8 [50000, 3, 32, 32]: noise around a middle that spells the image's index, a byte a channel.

    The middle is wide enough to cover pixel (16, 16) after any crop and flip.
    """
    n = WORKLOADS["raw"].samples
    data = np.random.default_rng(0).integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)
    middle = slice(16 - PAD - 1, 16 + PAD + 1)
    for channel in range(3):
        data[:, channel, middle, middle] = (np.arange(n) >> 8 * channel & 255)[:, None, None]
    return data


def crop_flip(image, dy, dx, flip):
    """One image, padded, cropped at (dy, dx) in 0 ... 2*PAD and mirrored where asked: a uint8 view."""
    padded = np.zeros((3, 32 + 2 * PAD, 32 + 2 * PAD), np.uint8)
    padded[:, PAD:-PAD, PAD:-PAD] = image
    crop = padded[:, dy : dy + 32, dx : dx + 32]
    return crop[:, :, ::-1] if flip else crop


def crop_flip_batch(batch, dy, dx, flip):
    """The same for [n, 3, 32, 32] with n offsets and flips: the fastest of seven ways tried with NumPy and PyTorch."""
    n = len(batch)
    padded = np.zeros((n, 3, 32 + 2 * PAD, 32 + 2 * PAD), np.uint8)
    padded[:, :, PAD:-PAD, PAD:-PAD] = batch
    windows = np.lib.stride_tricks.sliding_window_view(padded, (32, 32), (2, 3))
    crops = windows[np.arange(n), :, dy, dx]
    crops[flip] = crops[flip][..., ::-1]
    return crops


def normalise(pixels):
    """uint8 [..., 3, 32, 32] to float32."""
    out = pixels * SCALE
    out += SHIFT
    return out


class WrongData(Exception):
    """A peer's script delivers something else than the workload asks for."""


def check_epoch(name, batches, source):
    """Reads one epoch and raises WrongData unless it is the workload's: shapes, types, values, each sample once, shuffled."""
    workload = WORKLOADS[name]
    source = source if name in OWN else np.asarray(source)
    lengths, ids, seen = [], [], 0
    placed = set()
    while seen < workload.samples:
        batch = next(batches)
        if name == "shards" or name in OWN:
            batch, numbers = (np.asarray(part) for part in batch)
        batch = np.asarray(batch)
        if batch.dtype != workload.dtype or batch.shape[1:] != workload.shape:
            raise WrongData(f"batch of {batch.dtype}{batch.shape}, want {np.dtype(workload.dtype)} [n, {workload.shape}]")
        if name in PHOTOS:  # which one it is can't be seen: it must be a photograph, normalised or not
            least, most = (-1, 256) if workload.dtype == np.uint8 else (-2.2, 2.7)
            if not (least < batch.min() < batch.max() < most) or any(np.ptp(photo) < 0.1 * (most - least) for photo in batch):
                raise WrongData(f"values of {batch.min()} to {batch.max()}")
            ids.append(numbers if name == "shards" else np.empty(0, np.int64))
        elif name in OWN:
            ids.append(numbers)
        else:
            ids.append(_indices(name, batch))
        if name == "raw" and not np.array_equal(batch, source[ids[-1]]):
            raise WrongData("raw images differ from their source")
        if name == "augment" and len(lengths) < 2:
            placed |= {_placement(image, source[i]) for image, i in zip(batch, ids[-1])}
        lengths.append(len(batch))
        seen += len(batch)

    full, rest = divmod(workload.samples, workload.batch)
    if sorted(lengths) != [rest] * (rest > 0) + [workload.batch] * full:
        raise WrongData(f"batches of {sorted(set(lengths))} samples, want {full} of {workload.batch} and one of {rest}")
    if name in PHOTOS and name != "shards":
        return
    if name in ("own-pillow", "own-numpy"):  # numbers are classes
        if not np.array_equal(np.bincount(np.concatenate(ids)), np.bincount(source.classes)):
            raise WrongData("not each class as often as there are files of it")
        return
    order = np.concatenate(ids)
    if not np.array_equal(np.sort(order), np.arange(workload.samples)):
        raise WrongData(f"{len(np.unique(order))} different samples in an epoch of {workload.samples}")
    # In a shuffled order neighbours lie a third of the dataset apart on average; in shards, at least of a shard.
    if np.abs(np.diff(order)).mean() < (96 if name == "shards" else workload.samples) / 4:
        raise WrongData("the epoch is not shuffled")
    if name == "augment" and (len(placed) < 60 or len({flip for _, _, flip in placed}) < 2):
        raise WrongData(f"{len(placed)} kinds of crop and flip among 256 images, want about 130 of the 162 possible")


def _indices(name, batch):
    if name in IMAGES:
        middle = batch[:, :, 16, 16]
        if name == "augment":
            middle = np.rint((middle - SHIFT[:, 0, 0]) / SCALE[:, 0, 0])
        indices = middle.astype(np.int64) @ [1, 1 << 8, 1 << 16]
    else:
        indices = batch.astype(np.int64)
    samples = WORKLOADS[name].samples
    if indices.min() < 0 or indices.max() >= samples:
        raise WrongData(f"samples {indices.min()} to {indices.max()} of a dataset of {samples}")
    return indices


def _placement(image, source):
    """The one crop and flip that makes image of source."""
    for flip in (False, True):
        for dy in range(2 * PAD + 1):
            for dx in range(2 * PAD + 1):
                made = normalise(crop_flip(source, dy, dx, flip))
                if np.allclose(made, image, atol=1e-4):
                    return dy, dx, flip
    raise WrongData("an augmented image is no crop of its source")
