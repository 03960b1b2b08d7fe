"""tf.data.

Indices are shuffled instead of images, which keeps the shuffle buffer of a whole epoch small. A worker is a parallel
call of map with a thread for it; 0 workers is a pipeline without parallel calls and without prefetch.

  sample      map, then batch
  vectorised  batch, then map

Photographs are resized without antialiasing, as TensorFlow's own ImageNet pipelines do: with it, it is far slower. Bytes
are made by the sample, and what is done with floats by the batch, compiled by XLA.

  vectorised  photographs: decodes only the crop
  scaled      the same, of large crops at 1/2 to 1/8, so that twice the crop's size in the batch is left
"""

import time

import numpy as np
import tensorflow as tf

import photos
from workloads import IMAGES, PAD, PHOTOS, SCALE, SECONDS_PER_WAIT, SHIFT, images

version = tf.__version__
BORDER = [[PAD, PAD], [PAD, PAD]]


def open_data(workload):
    if workload in PHOTOS:
        return tf.constant(photos.of(workload).paths()[0])
    return tf.constant(images()) if workload in IMAGES else None


def normalise(pixels):
    return tf.cast(pixels, tf.float32) * SCALE + SHIFT


def by_sample(workload, data):
    def augment(i):
        padded = tf.pad(tf.gather(data, i), [[0, 0], *BORDER])
        crop = tf.image.random_crop(padded, [3, 32, 32])
        return normalise(tf.cond(tf.random.uniform([]) < 0.5, lambda: tf.reverse(crop, [2]), lambda: crop))

    def sleep(i):
        time.sleep(SECONDS_PER_WAIT)
        return np.float32(i)

    return {
        "augment": augment,
        "raw": lambda i: tf.gather(data, i),
        "wait": lambda i: tf.ensure_shape(tf.numpy_function(sleep, [i], tf.float32), []),
        "empty": lambda i: tf.cast(i, tf.float32),
    }[workload]


def by_batch(workload, data):
    def augment(indices):
        """Gathers rows, then columns: the fastest of four ways tried."""
        offsets = tf.random.uniform([2, tf.size(indices), 1], 0, 2 * PAD + 1, tf.int32)
        flip = tf.random.uniform([tf.size(indices), 1]) < 0.5
        rows = offsets[0] + tf.range(32)
        columns = offsets[1] + tf.where(flip, tf.range(31, -1, -1), tf.range(32))
        x = tf.pad(tf.gather(data, indices), [[0, 0], [0, 0], *BORDER])
        x = tf.gather(tf.transpose(x, [0, 2, 1, 3]), rows, axis=1, batch_dims=1)
        x = tf.gather(tf.transpose(x, [0, 3, 2, 1]), columns, axis=1, batch_dims=1)
        return normalise(tf.transpose(x, [0, 2, 3, 1]))

    return {"augment": augment, "raw": lambda indices: tf.gather(data, indices)}[workload]


def resized(file, window, scaled):
    """The window of a file, [y, x, height, width], in float32 levels [224, 224, 3]."""

    def at(ratio):
        part = tf.concat([window[:2] // ratio, window[2:] // ratio], 0)
        return tf.image.decode_and_crop_jpeg(file, part, channels=3, ratio=ratio)

    if scaled:
        most = tf.reduce_min(window[2:]) // (2 * photos.SIDE)  # how many times smaller the crop may be
        crop = tf.case([(most >= 8, lambda: at(8)), (most >= 4, lambda: at(4)), (most >= 2, lambda: at(2))], lambda: at(1))
    else:
        crop = at(1)
    return tf.image.resize(crop, [photos.SIDE, photos.SIDE])


def photographs(workload, variant, indices, data, parallel):
    def load(i):
        file = tf.io.read_file(tf.gather(data, i))
        at, size, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(file),
            tf.zeros([1, 0, 4]),
            area_range=(0.08, 1.0),
            aspect_ratio_range=(3 / 4, 4 / 3),
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        crop = tf.cast(resized(file, tf.concat([at[:2], size[:2]], 0), variant == "scaled") + 0.5, tf.uint8)
        return tf.cond(tf.random.uniform([]) < 0.5, lambda: tf.reverse(crop, [1]), lambda: crop)

    @tf.function(jit_compile=True)
    def finish(batch):
        if workload.dtype == np.float32:
            batch = (tf.cast(batch, tf.float32) - 255 * tf.constant(photos.MEAN)) / (255 * tf.constant(photos.STD))
        return tf.transpose(batch, [0, 3, 1, 2])

    return indices.map(load, **parallel).batch(workload.batch).map(finish, **parallel)


def crop(workload, variant):
    load = tf.function(lambda file, window: resized(tf.io.read_file(file), window, variant == "scaled"), reduce_retracing=True)

    def levels(file, window):
        x, y, w, h = window
        return (load(tf.constant(file), tf.constant([y, x, h, w])).numpy() + 0.5).astype(np.uint8).transpose(2, 0, 1)

    return levels


def loader(name, workload, variant, workers, data):
    parallel = {"num_parallel_calls": workers, "deterministic": False} if workers else {}
    if (name, variant) == ("empty", "vectorised"):  # the numbers are the samples: nothing to map
        indices = tf.data.Dataset.range(workload.samples, output_type=tf.float32)
        batches = indices.shuffle(workload.samples).batch(workload.batch)
    else:
        indices = tf.data.Dataset.range(workload.samples).shuffle(workload.samples)
        if name in PHOTOS:
            batches = photographs(workload, variant, indices, data, parallel)
        elif variant == "sample":
            batches = indices.map(by_sample(name, data), **parallel).batch(workload.batch)
        else:
            batches = indices.batch(workload.batch).map(by_batch(name, data), **parallel)
    batches = batches.repeat()
    if workers:
        batches = batches.prefetch(tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.threading.private_threadpool_size = max(1, workers)
    options.threading.max_intra_op_parallelism = 1
    batches = batches.with_options(options)

    def start():
        yield from batches

    return start
