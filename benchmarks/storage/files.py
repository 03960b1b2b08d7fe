#!/usr/bin/env python3
"""Makes the files of a shape in FOLDER/SHAPE: about 4 GB, the same at each run. FOLDER/SHAPE/dlio/train has their names
many times over, as hard links, since DLIO's epochs aren't repeated without a break: enough for ACCELERATORS × STEPS.

    files.py FOLDER SHAPE ACCELERATORS STEPS
"""

import functools
import io
import json
import math
import os
import pathlib
import sys

import numpy as np

# batch, files, samples per file, bytes per sample, DLIO's suffix (2.0.0 knows no Parquet)
SHAPES = {
    "retinanet": (24, 12288, 1, 323_000, "jpeg"),
    "resnet50": (400, 30, 1251, 114_660, "tfrecord"),
    "flux": (48, 7, 288, 2_160_000, "hdf5"),
    "unet3d": (7, 28, 1, 146_600_628, "npz"),
}
PICTURES = 32  # distinct ones


@functools.cache
def picture(number):
    """A JPEG file of 1024 × 768 pixels: noise of all scales, as photographs have, so that it takes long to decode."""
    from PIL import Image

    draw = np.random.default_rng(number)
    pixels = np.zeros((768, 1024, 3), np.float32)
    for octave in range(9):
        grid = draw.normal(128, 50, (3 << octave, 4 << octave, 3)).clip(0, 255).astype(np.uint8)
        pixels += np.asarray(Image.fromarray(grid).resize((1024, 768), Image.BICUBIC), np.float32) / 2 ** min(octave, 6)
    pixels = (pixels - pixels.min()) * (255 / np.ptp(pixels))
    for quality in range(97, 0, -1):
        out = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(out, "jpeg", quality=quality, subsampling="4:2:0")
        if out.tell() <= 323_000:
            return out.getvalue() + bytes(323_000 - out.tell())


def write(shape, path, number, samples, size):
    draw = np.random.Generator(np.random.SFC64(number))
    if shape == "retinanet":
        path.write_bytes(picture(number % PICTURES))
    elif shape == "unet3d":
        np.savez(path, x=np.frombuffer(draw.bytes(size), np.uint8).reshape(1, -1, 1), y=np.zeros(1))
    elif shape == "resnet50":
        import tensorflow as tf

        with tf.io.TFRecordWriter(str(path)) as out:
            for _ in range(samples):
                feature = {"image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[draw.bytes(size)])),
                           "size": tf.train.Feature(int64_list=tf.train.Int64List(value=[size]))}
                out.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), samples, [None, pa.py_buffer(draw.bytes(samples * size))])
        pq.write_table(pa.table({"image": values}), path, row_group_size=1, compression="none", use_dictionary=False, write_statistics=False)
        groups = [pq.ParquetFile(path).metadata.row_group(g).column(0) for g in range(samples)]
        places = [[group.data_page_offset, group.total_compressed_size] for group in groups]
        (path.parent.parent / "rowgroups.json").write_text(json.dumps(places))  # alike in all files


def main():
    folder, shape, accelerators, steps = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    batch, files, samples, size, suffix = SHAPES[shape]
    own, links = folder / shape / "files", folder / shape / "dlio" / "train"
    own.mkdir(parents=True, exist_ok=True)
    links.mkdir(parents=True, exist_ok=True)
    (links.parent / "valid").mkdir(exist_ok=True)
    for i in range(files):
        if not (path := own / f"{i:05}.{suffix}").exists():
            write(shape, path.with_name("part.npz"), i, samples, size)
            path.with_name("part.npz").rename(path)
    for i in range(math.ceil(accelerators * (1 + math.ceil(steps * batch / samples)))):
        if not (link := links / f"{i:07}.{suffix}").exists():
            os.link(own / f"{i % files:05}.{suffix}", link)


if __name__ == "__main__":
    main()
