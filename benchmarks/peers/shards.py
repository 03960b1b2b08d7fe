#!/usr/bin/env python3
"""Makes shards/ of the photographs that photos.py made: each four times, 1 536 in all, 96 in a shard.

shards/tar is WebDataset's format, shards/litdata LitData's. A sample is a JPEG file, as it is, and its number as a label.
"""

import pathlib

import photos

FOLDER = pathlib.Path(__file__).parent / "shards"
SAMPLES, PER_SHARD = 4 * photos.SMALL.number, 96


def sample(i):
    from PIL import Image

    return Image.open(photos.SMALL.paths()[0][i % photos.SMALL.number]), i


def make():
    import litdata
    import webdataset

    (FOLDER / "tar").mkdir(parents=True, exist_ok=True)
    with webdataset.ShardWriter(str(FOLDER / "tar" / "photos-%06d.tar"), maxcount=PER_SHARD, verbose=0) as tar:
        for i in range(SAMPLES):
            file = pathlib.Path(photos.SMALL.paths()[0][i % photos.SMALL.number])
            tar.write({"__key__": f"{i:06}", "jpg": file.read_bytes(), "cls": i})
    how = dict(chunk_size=PER_SHARD, num_workers=1, reorder_files=False, mode="overwrite", verbose=False)
    litdata.optimize(sample, list(range(SAMPLES)), str(FOLDER / "litdata"), **how)


def tars():
    files = sorted(str(p) for p in (FOLDER / "tar").glob("*.tar"))
    if len(files) != SAMPLES // PER_SHARD:
        raise FileNotFoundError(f"{FOLDER} has {len(files)} shards: shards.py makes {SAMPLES // PER_SHARD}")
    return files


if __name__ == "__main__":
    make()
    print(f"{FOLDER}: {len(tars())} shards")
