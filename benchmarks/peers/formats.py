#!/usr/bin/env python3
"""One thread: files of six formats to a random part of 224 x 224 bytes, by torchvision or by Pillow.

`formats.py make` makes formats/ of the first 64 photographs (photos.py). `formats.py torchvision --seconds 1.5` prints a
JSON object for each format.
"""

import argparse
import json
import pathlib
import time

import photos

FOLDER, FILES = pathlib.Path(__file__).parent / "formats", 64
FORMATS = {
    "JPEG, baseline": ("jpg", {"quality": 91, "subsampling": "4:2:0"}),
    "JPEG, progressive": ("jpg", {"quality": 91, "subsampling": "4:2:0", "progressive": True}),
    "JPEG of 12 MP": ("jpg", {"quality": 91, "subsampling": "4:2:0"}),
    "PNG": ("png", {}),
    "WebP, lossy": ("webp", {"quality": 90}),
    "WebP, lossless": ("webp", {"lossless": True}),
}


def make():
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(0)
    for name, (extension, options) in FORMATS.items():
        (FOLDER / name).mkdir(parents=True, exist_ok=True)
        large = name == "JPEG of 12 MP"
        for path in map(pathlib.Path, photos.SMALL.paths()[0][: 8 if large else FILES]):
            picture = Image.open(path)
            if large:  # with as much noise as a camera's
                picture = np.asarray(picture.resize((4000, 3000), Image.LANCZOS), np.float32)
                picture = Image.fromarray((picture + noise.normal(0, 3, picture.shape)).clip(0, 255).astype(np.uint8))
            picture.save(FOLDER / name / f"{path.stem}.{extension}", **options)


def measure(peer, seconds):
    import torch
    from PIL import Image
    from torchvision import io
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    steps = v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()])
    load = {
        "torchvision": lambda path: steps(io.decode_image(io.read_file(path), io.ImageReadMode.RGB)),
        "pillow": lambda path: v2.functional.pil_to_tensor(steps(Image.open(path).convert("RGB"))),
    }[peer]
    for name in FORMATS:
        files = [str(path) for path in sorted((FOLDER / name).iterdir())]
        load(files[0])
        images, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            load(files[images % len(files)])
            images += 1
        print(json.dumps({"peer": peer, "format": name, "images_per_s": images / (time.perf_counter() - began)}))


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("peer", choices=("make", "torchvision", "pillow"))
    arguments.add_argument("--seconds", type=float, default=1.5)
    given = arguments.parse_args()
    make() if given.peer == "make" else measure(given.peer, given.seconds)
