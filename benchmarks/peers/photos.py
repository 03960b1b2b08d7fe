#!/usr/bin/env python3
"""Makes photos/: 384 photographs of 500 x 375 pixels, about 50 kB each, in 8 folders, as ImageNet's are.

They are parts of photographs that packages ship: scikit-learn's "china" (by danielbuechele) and "flower" (by vultilion),
both CC BY 2.0, and scikit-image's "coffee", "chelsea", "astronaut", "rocket" and "motorcycle_left", whose sources and
terms its documentation names (skimage.data).
"""

import math
import pathlib
import random
from importlib.util import find_spec

import numpy as np

FOLDER = pathlib.Path(__file__).parent / "photos"
PHOTOS, CLASSES, WIDTH, HEIGHT, SIDE = 384, 8, 500, 375, 224
MEAN, STD = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)[:, :, None, None]


def make():
    from PIL import Image

    learn = pathlib.Path(find_spec("sklearn").origin).parent / "datasets" / "images"
    image = pathlib.Path(find_spec("skimage").origin).parent / "data"
    names = [learn / "china.jpg", learn / "flower.jpg"]
    names += [image / n for n in ("coffee.png", "chelsea.png", "astronaut.png", "rocket.jpg", "motorcycle_left.png")]
    sources = [Image.open(name).convert("RGB") for name in names]
    draw = random.Random(0)
    for i in range(PHOTOS):
        source = sources[i % len(sources)]
        scale = min(source.width / WIDTH, source.height / HEIGHT) * draw.uniform(0.6, 1)
        w, h = WIDTH * scale, HEIGHT * scale
        x, y = draw.uniform(0, source.width - w), draw.uniform(0, source.height - h)
        part = source.resize((WIDTH, HEIGHT), Image.LANCZOS, box=(x, y, x + w, y + h))
        path = FOLDER / str(i % CLASSES) / f"{i:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        part.save(path, quality=91, subsampling="4:2:0")


def paths():
    """The files, in the order of their numbers, and the class of each."""
    files = sorted(FOLDER.glob("*/*.jpg"), key=lambda p: p.name)
    if len(files) != PHOTOS:
        raise FileNotFoundError(f"{FOLDER} has {len(files)} photographs: photos.py makes {PHOTOS}")
    return [str(p) for p in files], [int(p.parent.name) for p in files]


def random_part(uniform):
    """RandomResizedCrop's, of a picture of the one size that there is: width, height, x, y."""
    while True:
        area, ratio = WIDTH * HEIGHT * uniform(0.08, 1), math.exp(uniform(-1, 1) * math.log(4 / 3))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if w <= WIDTH and h <= HEIGHT:
            return w, h, int(uniform(0, WIDTH - w + 1)), int(uniform(0, HEIGHT - h + 1))


def normalised(batch):
    """uint8 [n, 224, 224, 3] to float32 [n, 3, 224, 224]."""
    out = batch.transpose(0, 3, 1, 2) * (1 / (255 * STD))
    out -= MEAN / STD
    return out


if __name__ == "__main__":
    make()
    files, _ = paths()
    print(f"{FOLDER}: {len(files)} photographs, {sum(pathlib.Path(f).stat().st_size for f in files) // len(files)} bytes each")
