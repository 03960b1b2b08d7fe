#!/usr/bin/env python3
"""Makes mask.png, and what torchvision makes of a picture, its mask and boxes together.

    pip install pillow torch torchvision && ./together.py

together.json names, for each case, the steps, the PNGs with the results, and the boxes.
"""

import json
import pathlib

import numpy as np
import torch
import torchvision
from PIL import Image
from torchvision import tv_tensors
from torchvision.io import decode_jpeg
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

here = pathlib.Path(__file__).parent
photo = Image.open(here / "photo.jpg")

# Seven classes, of a palette whose colours aren't their numbers.
grey = np.array(photo.convert("L").resize((125, 94)).resize(photo.size, Image.NEAREST))
mask = Image.fromarray((grey // 37).astype(np.uint8), "L")
mask.putpalette([c for i in range(7) for c in (255 - 30 * i, 20 * i, 77 * i % 256)])
mask.save(here / "mask.png", optimize=True)
assert Image.open(here / "mask.png").mode == "P"

picture = tv_tensors.Image(decode_jpeg(torch.frombuffer(bytearray((here / "photo.jpg").read_bytes()), dtype=torch.uint8), mode="RGB"))
labels = tv_tensors.Mask(torch.from_numpy(np.array(Image.open(here / "mask.png"))))
boxes = tv_tensors.BoundingBoxes([[0, 0, 500, 375], [120, 60, 130, 300], [390.5, 240.25, 480, 370], [10, 10, 20, 20]], format="XYXY", canvas_size=(375, 500))

cases = []
for steps in [
    [("crop", 100, 50, 300, 200), ("resize", 96, 80), ("flip",)],
    [("crop", 37, 11, 41, 31), ("resize", 96, 80)],
    [("crop", 3, 5, 381, 349), ("resize", 97, 89), ("flip",), ("turn",)],
    [("resize", 170, 128), ("crop", 21, 7, 112, 112), ("flip",)],
    [("crop", -20, -10, 130, 110), ("turn",)],
    [("crop", 250, 200, 60, 70), ("crop", -10, 5, 80, 90)],
]:
    out = [picture, labels, boxes]
    for name, *args in steps:
        for i, of in enumerate(out):
            if name == "crop":
                left, top, width, height = args
                out[i] = F.crop(of, top, left, height, width)
            elif name == "resize" and i == 1:  # the nearest centre; of a Mask, torchvision takes the nearest corner
                out[i] = tv_tensors.Mask(F.resize_image(of[None], [args[1], args[0]], InterpolationMode.NEAREST_EXACT)[0])
            elif name == "resize":
                out[i] = F.resize(of, [args[1], args[0]], antialias=True)
            elif name == "flip":
                out[i] = F.horizontal_flip(of)
            else:
                out[i] = F.vertical_flip(of)
    n = len(cases)
    Image.fromarray(out[0].permute(1, 2, 0).numpy()).save(here / f"together-{n}.png", optimize=True)
    Image.fromarray(out[1].numpy()).save(here / f"together-{n}-mask.png", optimize=True)
    cases.append(dict(steps=[dict(name=s[0], args=s[1:]) for s in steps], boxes=[[round(v, 4) for v in b] for b in out[2].tolist()]))

(here / "together.json").write_text(json.dumps(dict(torchvision=torchvision.__version__, torch=torch.__version__, boxes=boxes.tolist(), cases=cases), indent=1) + "\n")
