"""The loading parts of examples/recipes as a user of PyTorch writes them: the same work on data of the same shape.

    .venv/bin/python recipes.py text 2   # workers

prints samples a second of whole epochs after a first one, for a second or more; what loading adds to the peak memory;
and bytes of the first tensor per batch. parquet needs pyarrow.
"""

import io
import json
import math
import os
import random
import sys
import tempfile
import time

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import (
    ConcatDataset, DataLoader, Dataset, IterableDataset, Sampler, TensorDataset, WeightedRandomSampler, default_collate, get_worker_info)

from memory import Peak, tree_pss


class Bucketed(Sampler):
    """Batches of similar length: shuffled, sorted within 100 batches at a time, and the batches shuffled again."""

    def __init__(self, lengths, batch_size, near=100):
        self.lengths, self.batch_size, self.near = np.asarray(lengths), batch_size, near * batch_size

    def __iter__(self):
        order, batches = np.random.permutation(len(self.lengths)), []
        for k in range(0, len(order), self.near):
            part = order[k : k + self.near]
            part = part[np.argsort(self.lengths[part], kind="stable")]
            batches += [part[b : b + self.batch_size].tolist() for b in range(0, len(part), self.batch_size)]
        random.shuffle(batches)
        return iter(batches)

    def __len__(self):
        return math.ceil(len(self.lengths) / self.batch_size)


class Text(Dataset):
    def __init__(self, n=20_000):
        rng = np.random.default_rng(3)
        self.lengths = 1 + (rng.random(n) * rng.random(n) * 127).astype(int)
        self.ends = np.cumsum(self.lengths)
        self.tokens = rng.integers(0, 1 << 15, self.ends[-1], dtype=np.int16)

    def __getitem__(self, i):
        end = self.ends[i]
        return torch.from_numpy(self.tokens[end - self.lengths[i] : end]), i % 2

    def __len__(self):
        return len(self.ends)


def pad_text(samples):
    sentences, tones = zip(*samples)
    padded = pad_sequence(sentences, batch_first=True)
    padded = torch.nn.functional.pad(padded, (0, -padded.shape[1] % 8))
    return padded, torch.tensor([len(s) for s in sentences]), torch.tensor(tones, dtype=torch.int32)


def text():
    data = Text()
    return data, dict(batch_sampler=Bucketed(data.lengths, 16), collate_fn=pad_text)


def scene_size(i):
    return 40 + i * 7 % 25, 60 + i * 11 % 37, 1 + i % 8


class Scenes(Dataset):
    def __init__(self, n=4000):
        self.n = n

    def __getitem__(self, i):
        height, width, n = scene_size(i)
        scene = np.empty((height, width, 3), np.uint8)
        scene[..., 0], scene[..., 1], scene[..., 2] = i & 255, np.arange(height)[:, None], np.arange(width)
        k = np.arange(n, dtype=np.float32)
        boxes = np.stack([k, k, (width - k) / 2, height - k], 1)
        if random.random() < 0.5:
            scene = scene[:, ::-1].copy()
            boxes[:, [0, 2]] = width - boxes[:, [2, 0]]
        return torch.from_numpy(scene), torch.from_numpy(boxes), torch.arange(i, i + n)

    def __len__(self):
        return self.n


def pad_scenes(samples):
    scenes, boxes, things = zip(*samples)
    batch = torch.zeros(len(scenes), max(s.shape[0] for s in scenes), max(s.shape[1] for s in scenes), 3, dtype=torch.uint8)
    for place, scene in zip(batch, scenes):
        place[: scene.shape[0], : scene.shape[1]] = scene
    return batch, pad_sequence(boxes, batch_first=True), pad_sequence(things, batch_first=True)


def shapes():
    aspect = [100 * scene_size(i)[1] // scene_size(i)[0] for i in range(4000)]
    return Scenes(), dict(batch_sampler=Bucketed(aspect, 8), collate_fn=pad_scenes)


class Corpus(Dataset):
    def __init__(self, path, window=32):
        self.tokens, self.window = np.memmap(path, np.uint16, "r"), window

    def __getitem__(self, i):
        start = i * self.window + random.randrange(self.window)
        return torch.from_numpy(self.tokens[start : start + self.window + 1].astype(np.int32))

    def __len__(self):
        return len(self.tokens) // self.window - 2


def pretrain():
    parts, folder = [], tempfile.mkdtemp()
    for k, n in enumerate((20_000, 3_000)):
        path = os.path.join(folder, f"corpus-{k}.bin")
        np.random.default_rng(k).integers(0, 1 << 16, n, dtype=np.uint16).tofile(path)
        parts.append(Corpus(path))
    weights = np.concatenate([np.full(len(p), w / len(p)) for p, w in zip(parts, (0.6, 0.4))])
    sampler = WeightedRandomSampler(torch.from_numpy(weights), 20_000)
    return ConcatDataset(parts), dict(batch_size=16, sampler=sampler, drop_last=True)


class Recordings(Dataset):
    def __init__(self, n=5000):
        self.n = n

    def __getitem__(self, i):
        frames, start = 1 + i * 7 % 20, random.randrange(1000)
        at = torch.arange(start, start + frames * 64, dtype=torch.float64)
        signal = torch.sin(2 * math.pi * (1 + i % 30) * at / 64).view(frames, 64)
        return torch.fft.rfft(signal)[:, :32].abs().float()

    def __len__(self):
        return self.n


def pad_clips(clips):
    return pad_sequence(clips, batch_first=True), torch.tensor([len(c) for c in clips])


def audio():
    lengths = [1 + i * 7 % 20 for i in range(5000)]
    return Recordings(), dict(batch_sampler=Bucketed(lengths, 8), collate_fn=pad_clips)


def made_pictures(n):
    from PIL import Image

    y, x = np.mgrid[0:40, 0:48].astype(np.uint8)
    for i in range(n):
        file = io.BytesIO()
        Image.fromarray(np.stack([5 * x, 6 * y, np.full_like(x, 10 * i & 255)], 2)).save(file, "JPEG", quality=75)
        yield file.getvalue()


class Pictures(Dataset):
    def __init__(self, n=1000):
        from torchvision import transforms

        self.files = list(made_pictures(n))
        self.transform = transforms.Compose([
            transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])

    def __getitem__(self, i):
        from PIL import Image

        return self.transform(Image.open(io.BytesIO(self.files[i])).convert("RGB")), torch.eye(4)[i % 4]

    def __len__(self):
        return len(self.files)


class Twice(Sampler):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(torch.randperm(self.n).repeat_interleave(2).tolist())

    def __len__(self):
        return 2 * self.n


def mixup(samples):
    pictures, shares = default_collate(samples)
    weight = random.random()
    for values in (pictures, shares):
        values[:-1] = torch.lerp(values[:-1], values[1:], weight)
    return pictures, shares


def pictures():
    data = Pictures()
    return data, dict(batch_size=8, sampler=Twice(len(data)), collate_fn=mixup)


class PerClass(Sampler):
    """Batches of p classes with k samples each, every class once per epoch."""

    def __init__(self, classes, each, p, k):
        self.classes, self.each, self.p, self.k = classes, each, p, k

    def __iter__(self):
        order = random.sample(range(self.classes), self.classes)
        for start in range(0, self.classes - self.p + 1, self.p):
            yield [c * self.each + i for c in order[start : start + self.p] for i in random.sample(range(self.each), self.k)]

    def __len__(self):
        return self.classes // self.p


def metric(classes=500, each=10):
    labels = torch.arange(classes, dtype=torch.int32).repeat_interleave(each)
    vectors = torch.stack([labels.float(), (labels % 3).float()], 1) + 0.3 * torch.rand(len(labels), 2)
    # With batch_size=None the dataset gets the whole list: a batch is one look into each tensor.
    return TensorDataset(vectors, labels), dict(batch_size=None, sampler=PerClass(classes, each, 4, 3))


class RowGroups(IterableDataset):
    """Batches of rows from row groups in random order: the rows of three groups are shuffled together. A worker has windows of its own."""

    def __init__(self, groups, read, batch_size, mixed=3):
        self.groups, self.read, self.batch_size, self.mixed, self.epoch = groups, read, batch_size, mixed, 0

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        self.epoch += 1
        order = np.random.default_rng((1, self.epoch)).permutation(self.groups)  # the same in every worker
        rng, left = np.random.default_rng((2, self.epoch, first)), None
        for start in range(first * self.mixed, self.groups, step * self.mixed):
            columns = [np.concatenate(c) for c in zip(*(self.read(int(g)) for g in order[start : start + self.mixed]))]
            mix = rng.permutation(len(columns[0]))
            columns = [c[mix] for c in columns]
            if left:
                columns = [np.concatenate(c) for c in zip(left, columns)]
            whole = len(columns[0]) // self.batch_size * self.batch_size
            for row in range(0, whole, self.batch_size):
                yield [torch.from_numpy(c[row : row + self.batch_size]) for c in columns]
            left = [c[whole:] for c in columns]
        if left and len(left[0]):
            yield [torch.from_numpy(c) for c in left]


class Rows:
    """Row groups of a file: 50 rows of two int32."""

    def __init__(self, path):
        self.path, self.file = path, None

    def __call__(self, group):
        if self.file is None:  # each worker opens it for itself
            self.file = os.open(self.path, os.O_RDONLY)
        return (np.frombuffer(os.pread(self.file, 400, 400 * group), np.int32).reshape(50, 2),)


def rowgroups(groups=200):
    path, row = os.path.join(tempfile.mkdtemp(), "table.bin"), np.arange(50 * groups, dtype=np.int32)
    np.stack([row, row * row], 1).tofile(path)
    return RowGroups(groups, Rows(path), 16), dict(batch_size=None)


class Parquet:
    """Row groups of a Parquet file: float32 columns, and an int64 column "label"."""

    def __init__(self, path):
        self.path, self.file = path, None

    def __call__(self, group):
        from pyarrow.parquet import ParquetFile

        if self.file is None:
            self.file = ParquetFile(self.path, memory_map=True)
        table = self.file.read_row_group(group, use_threads=False)
        features = [column.to_numpy() for name, column in zip(table.column_names, table.columns) if name != "label"]
        return np.stack(features, 1), table["label"].to_numpy()


def parquet(groups=20, rows=5000, columns=8):
    import pyarrow
    from pyarrow.parquet import write_table

    path, row = os.path.join(tempfile.mkdtemp(), "table.parquet"), np.arange(groups * rows)
    fields = {f"x{c}": (row + c / 8).astype(np.float32) for c in range(columns)} | {"label": row}
    schema = pyarrow.schema([pyarrow.field(name, pyarrow.from_numpy_dtype(f.dtype), nullable=False) for name, f in fields.items()])
    write_table(pyarrow.table(fields, schema), path, row_group_size=rows, compression="snappy")
    return RowGroups(groups, Parquet(path), 256), dict(batch_size=None)


RECIPES = dict(text=text, shapes=shapes, pretrain=pretrain, audio=audio, pictures=pictures, metric=metric, rowgroups=rowgroups, parquet=parquet)


def main():
    torch.set_num_threads(1)
    workers = int(sys.argv[2])
    dataset, how = RECIPES[sys.argv[1]]()
    before, samples, size, batches = tree_pss(), 0, 0, 0
    loader = DataLoader(dataset, num_workers=workers, persistent_workers=workers > 0, **how)
    with Peak(0.5) as peak:
        for _ in loader:
            pass
    start, seconds = time.perf_counter(), 0  # without Peak, which takes CPU time
    while seconds < 1:
        for batch in loader:
            tensors = [batch] if torch.is_tensor(batch) else batch
            samples, size, batches = samples + len(tensors[0]), size + tensors[0].nbytes, batches + 1
        seconds = time.perf_counter() - start
    print(json.dumps(dict(recipe=sys.argv[1], peer="torch", workers=workers, rate=round(samples / seconds), bytes=round(size / batches), peak=round((peak.bytes - before) / 1e6))))


if __name__ == "__main__":
    main()
