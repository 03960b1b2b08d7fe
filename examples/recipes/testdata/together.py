#!/usr/bin/env python3
"""Makes what torchvision's transforms.v2 make of a photograph, its mask and boxes, for the recipes of
segmentation and detection.

    pip install pillow torch torchvision && ./together.py
"""

import json
import pathlib

import numpy as np
import torch
import torchvision
from PIL import Image
from torchvision import tv_tensors
from torchvision.io import decode_jpeg
from torchvision.transforms import v2

here = pathlib.Path(__file__).parent
source = here.parent.parent.parent / "vision" / "testdata"
picture = tv_tensors.Image(decode_jpeg(torch.frombuffer(bytearray((source / "photo.jpg").read_bytes()), dtype=torch.uint8), mode="RGB"))
mask = tv_tensors.Mask(torch.from_numpy(np.array(Image.open(source / "mask.png"))))
boxes = [[120, 100, 300, 250], [0, 0, 500, 375], [0, 0, 99, 80], [398, 150, 450, 200], [101, 88, 103, 287], [250, 285, 260, 300]]
transforms = v2.Compose([v2.CenterCrop((200, 300)), v2.Resize((64, 64), antialias=True), v2.RandomHorizontalFlip(p=1), v2.SanitizeBoundingBoxes()])
out = transforms({
    "image": picture,
    "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(375, 500), dtype=torch.float32),
    "labels": torch.arange(len(boxes)),
})
Image.fromarray(out["image"].permute(1, 2, 0).numpy()).save(here / "together.png", optimize=True)
# Each pixel of a mask is the one whose centre is nearest, as in vision; v2 takes "nearest" for masks.
exact = v2.Compose([v2.CenterCrop((200, 300)), v2.Resize((64, 64), v2.InterpolationMode.NEAREST_EXACT), v2.RandomHorizontalFlip(p=1)])
Image.fromarray(exact(mask.as_subclass(torch.Tensor)[None])[0].numpy()).save(here / "together-mask.png", optimize=True)
(here / "together.json").write_text(
    json.dumps(dict(torchvision=torchvision.__version__, boxes=boxes, kept=[[round(v, 4) for v in b] for b in out["boxes"].tolist()], labels=out["labels"].tolist()), indent=1) + "\n"
)
