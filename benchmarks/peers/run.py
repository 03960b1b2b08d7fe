#!/usr/bin/env python3
"""Measures one peer on one workload, once: `run.py --peer torch --workload augment --workers 2`.

Prints one JSON object:
  batches_per_s   samples a second / batch size, in steady state: after the first batch and a warm-up, epoch after epoch
  cpu_s_per_sample  CPU time of the process and its children meanwhile
  first_batch_s   from asking for an iterator to having its first batch, worker start-up and all
  peak_bytes      memory of the process and its children while it loads (PSS); not sampled while time is taken
  dataset_bytes   the same before a loader exists: the peer imported, its data in memory
  difference      of photographs: what the values of crops, 0 … 255, differ from Pillow's by, on average
  error, skipped  instead of these: why it failed; why it wasn't tried (the peer isn't installed)

Then it reads one more epoch and makes sure that it is the workload's (`--no-check` leaves that out).
`run.py --list` prints every combination, a JSON object a line.
"""

import argparse
import importlib
import json
import math
import os
import platform
import sys
import time
import traceback

import memory
import photos
from workloads import OWN, PHOTOS, WORKLOADS, check_epoch

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

BOTH = ("sample", "vectorised")
# A peer's module tells what its variants are.
VARIANTS = {
    "torch": {
        "augment": (*BOTH, "cores"),
        "raw": (*BOTH, "split"),
        "wait": ("sample", "endless", "threads"),
        "empty": (*BOTH, "split"),
        "photos": ("pillow", "torchvision", "simplejpeg"),
        "bytes": ("torchvision", "simplejpeg"),
        "large": ("torchvision", "simplejpeg"),
        "largebytes": ("simplejpeg",),
        "tail": ("sample", "ahead-8", "ahead-16", "unordered", "unordered-8"),
        "pauses": ("sample",),
        "own-small": ("sample",),
        "own-large": ("sample",),
        "own-pillow": ("sample",),
        "own-numpy": ("sample",),
    },
    "threads": {
        "photos": ("simplejpeg", "cropping"),
        "bytes": ("cropping",),
        "large": ("cropping", "scaled"),
        "largebytes": ("scaled",),
    },
    "tfdata": {
        "augment": BOTH,
        "raw": BOTH,
        "wait": ("sample",),
        "empty": BOTH,
        "photos": ("vectorised",),
        "bytes": ("vectorised",),
        "large": ("vectorised", "scaled"),
        "largebytes": ("scaled",),
    },
    "grain": {"augment": BOTH, "raw": BOTH, "wait": ("sample", "processes", "threads"), "empty": BOTH, "photos": ("simplejpeg",)},
    "spdl": {
        "augment": BOTH,
        "raw": BOTH,
        "wait": ("sample",),
        "empty": BOTH,
        "photos": ("ffmpeg", "simplejpeg"),
        "tail": ("sample", "ordered"),
        "pauses": ("sample",),
    },
    "dali": {
        "photos": ("sample", "decode"),
        "bytes": ("decode",),
        "large": ("sample", "decode"),
        "largebytes": ("decode",),
        "shards": ("sample",),
    },
    "client": {name: ("sample",) for name in ("photos", "bytes", "large", "largebytes", *OWN)},
    "webdataset": {"shards": ("torchvision", "pillow")},
    "litdata": {"shards": ("sample",)},
}


def workers_of(peer, workload, variant):
    if variant == "cores":
        return [0]
    if workload in PHOTOS:
        return [1, 2, 4]
    if workload in OWN:
        return [2]
    if workload in ("tail", "pauses"):
        return [16]
    counts = [0, 1, 2, 4, 16] + ([32, 64] if workload == "wait" else [])
    return counts[1:] if peer == "spdl" else counts  # SPDL always loads on threads of its own


def combinations():
    for peer, workloads in VARIANTS.items():
        for workload, variants in workloads.items():
            for variant in variants:
                for workers in workers_of(peer, workload, variant):
                    yield {"peer": peer, "workload": workload, "variant": variant, "workers": workers}


def measure(peer, name, variant, workers, seconds, check):
    workload = WORKLOADS[name]
    epoch = math.ceil(workload.samples / workload.batch)
    data = peer.open_data(name)
    crop = peer.crop(name, variant) if name in PHOTOS and name != "shards" and hasattr(peer, "crop") else None
    dataset_bytes = memory.tree_pss()
    start = peer.loader(name, workload, variant, workers, data)

    began = time.perf_counter()
    batches = start()
    next(batches)
    first = time.perf_counter() - began
    peak = memory.tree_pss()

    batches = paused(workload, batches)
    ahead = int(variant.partition("-")[2] or 2)  # batches that each worker may have loaded before the first was asked for
    consume(batches, seconds=0.2, at_least=max(4, ahead * workers, epoch if name in PHOTOS else 0))  # nwt remembers a picture's rows
    busy = memory.tree_cpu()
    samples, elapsed = consume(batches, seconds, at_least=min(10, 2 * epoch), multiple=workload.pauses or 1)
    busy = memory.tree_cpu() - busy
    with memory.Peak() as while_loading:
        consume(batches, seconds=0.5, at_least=4)
    batches.close()

    if check:
        again = start()
        check_epoch(name, again, data)
        again.close()
    return {
        "batches_per_s": samples / workload.batch / elapsed,
        "cpu_s_per_sample": busy / samples,
        "first_batch_s": first,
        "peak_bytes": max(peak, while_loading.bytes),
        "dataset_bytes": dataset_bytes,
        **({"difference": photos.difference(name, crop)} if crop else {}),
    }


def paused(workload, batches):
    """Batches with the pauses of the training step."""
    try:
        for n, batch in enumerate(batches, 2):  # one was taken
            if workload.pauses and n % workload.pauses == 0:
                time.sleep(workload.pause)
            yield batch
    finally:
        batches.close()


def consume(batches, seconds, at_least, multiple=1):
    """Takes batches for at least so long and at least so many, a multiple: the samples in them, and the time."""
    taken = samples = 0
    began = time.perf_counter()
    while True:
        batch = next(batches)
        samples += len(batch[0] if isinstance(batch, (list, tuple)) else batch)  # with labels, or without
        taken += 1
        elapsed = time.perf_counter() - began
        if elapsed >= seconds and taken >= at_least and taken % multiple == 0:
            return samples, elapsed


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--list", action="store_true")
    arguments.add_argument("--peer", choices=VARIANTS)
    arguments.add_argument("--workload", choices=WORKLOADS)
    arguments.add_argument("--variant", default="sample")
    arguments.add_argument("--workers", type=int, default=0)
    arguments.add_argument("--seconds", type=float, default=1.5)
    arguments.add_argument("--no-check", action="store_true")
    given = arguments.parse_args()
    if given.list:
        for combination in combinations():
            print(json.dumps(combination))
        return 0
    if not (given.peer and given.workload):
        arguments.error("--list, or --peer and --workload")
    offered = VARIANTS[given.peer][given.workload]
    if given.variant not in offered:
        arguments.error(f"--variant {given.variant}: {given.peer} has {', '.join(offered)} for {given.workload}")
    counts = workers_of(given.peer, given.workload, given.variant)
    if given.workers not in counts:
        arguments.error(f"--workers {given.workers}: {given.peer} {given.variant} is measured at {counts}")

    result = {
        "peer": given.peer,
        "variant": given.variant,
        "version": None,
        "workload": given.workload,
        "workers": given.workers,
        "python": platform.python_version(),
    }
    try:
        peer = importlib.import_module(f"{given.peer}_loader")
        result["version"] = peer.version
        result |= measure(peer, given.workload, given.variant, given.workers, given.seconds, not given.no_check)
    except ImportError as missing:
        result["skipped"] = str(missing)
    except Exception as failure:
        traceback.print_exc()
        result["error"] = f"{type(failure).__name__}: {failure}"
    print(json.dumps(result))
    return 1 if "error" in result else 0


if __name__ == "__main__":
    sys.exit(main())
