#!/usr/bin/env python3
"""Makes the photographs: photos/, 384 of 500 x 375 pixels, about 50 kB each, in 8 folders, as ImageNet's are, and large/,
128 of 3000 x 2000 pixels, about 1.1 MB each, with a camera's noise.

They are parts of photographs that packages ship: scikit-learn's "china" (by danielbuechele) and "flower" (by vultilion),
both CC BY 2.0, and scikit-image's "coffee", "chelsea", "astronaut", "rocket" and "motorcycle_left", whose sources and
terms its documentation names (skimage.data).

crops/ has what Pillow makes of 32 crops of each, by which loaders are judged.
"""

import json
import math
import pathlib
import random
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

HERE = pathlib.Path(__file__).parent
CROPS = HERE / "crops"
CLASSES, SIDE, WINDOWS = 8, 224, 32
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Photos:
    name: str
    number: int
    width: int
    height: int
    noise: float = 0

    @property
    def folder(self):
        return HERE / self.name

    def paths(self):
        """The files, in the order of their numbers, and the class of each."""
        files = sorted(self.folder.glob("*/*.jpg"), key=lambda p: p.name)
        if len(files) != self.number:
            raise FileNotFoundError(f"{self.folder} has {len(files)} photographs: photos.py makes {self.number}")
        return [str(p) for p in files], [int(p.parent.name) for p in files]

    def window(self, uniform):
        """RandomResizedCrop's, of a picture of the one size that there is: x, y, width, height."""
        while True:
            area, ratio = self.width * self.height * uniform(0.08, 1), math.exp(uniform(-1, 1) * math.log(4 / 3))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if w <= self.width and h <= self.height:
                return int(uniform(0, self.width - w + 1)), int(uniform(0, self.height - h + 1)), w, h

    def windows(self):
        """Files, windows in their middle, and what Pillow makes of them: uint8 [n, 3, 224, 224]."""
        listed = json.loads((CROPS / f"{self.name}.json").read_text())
        pixels = np.fromfile(CROPS / f"{self.name}.bin", np.uint8).reshape(len(listed), 3, SIDE, SIDE)
        return [str(self.folder / one["file"]) for one in listed], [tuple(one["window"]) for one in listed], pixels

    def make(self):
        from PIL import Image

        learn = pathlib.Path(find_spec("sklearn").origin).parent / "datasets" / "images"
        image = pathlib.Path(find_spec("skimage").origin).parent / "data"
        names = [learn / "china.jpg", learn / "flower.jpg"]
        names += [image / n for n in ("coffee.png", "chelsea.png", "astronaut.png", "rocket.jpg", "motorcycle_left.png")]
        sources = [Image.open(name).convert("RGB") for name in names]
        draw = random.Random(0)
        noise = np.random.default_rng(0).normal(0, self.noise, (self.height, self.width, 3)).astype(np.float32) if self.noise else None
        for i in range(self.number):
            source = sources[i % len(sources)]
            scale = min(source.width / self.width, source.height / self.height) * draw.uniform(0.6, 1)
            w, h = self.width * scale, self.height * scale
            x, y = draw.uniform(0, source.width - w), draw.uniform(0, source.height - h)
            part = source.resize((self.width, self.height), Image.LANCZOS, box=(x, y, x + w, y + h))
            if self.noise:
                part = Image.fromarray((np.asarray(part) + np.roll(noise, 97 * i, (0, 1))).clip(0, 255).astype(np.uint8))
            path = self.folder / str(i % CLASSES) / f"{i:03}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            part.save(path, quality=91, subsampling="4:2:0")
        self.make_windows()

    def make_windows(self):
        from PIL import Image

        draw, listed, pixels = random.Random(1), [], []
        for path in self.paths()[0][:WINDOWS]:
            _, _, w, h = self.window(draw.uniform)
            w, h = max(2, w - (self.width - w) % 2), max(2, h - (self.height - h) % 2)  # so that it can lie in the middle
            x, y = (self.width - w) // 2, (self.height - h) // 2
            crop = Image.open(path).crop((x, y, x + w, y + h)).resize((SIDE, SIDE), Image.BILINEAR)
            listed.append({"file": str(pathlib.Path(path).relative_to(self.folder)), "window": (x, y, w, h)})
            pixels.append(np.asarray(crop).transpose(2, 0, 1))
        CROPS.mkdir(exist_ok=True)
        (CROPS / f"{self.name}.json").write_text(json.dumps(listed))
        np.stack(pixels).tofile(CROPS / f"{self.name}.bin")


SMALL, LARGE = Photos("photos", 384, 500, 375), Photos("large", 128, 3000, 2000, noise=4)


def of(workload):
    """The photographs of a workload."""
    return LARGE if workload.startswith("large") else SMALL


def difference(workload, crop):
    """What a peer's crop(file, window), [3, 224, 224], differs from Pillow's by: the mean, of values 0 … 255."""
    files, windows, pixels = of(workload).windows()
    made = np.stack([np.asarray(crop(*one)) for one in zip(files, windows)])
    return float(np.abs(made - pixels.astype(np.float64)).mean())


if __name__ == "__main__":
    for photos in (SMALL, LARGE):
        photos.make()
        files, _ = photos.paths()
        print(f"{photos.folder}: {len(files)} photographs, {sum(pathlib.Path(f).stat().st_size for f in files) // len(files)} bytes each")
