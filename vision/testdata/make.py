#!/usr/bin/env python3
"""Makes this folder's pictures, and what Pillow and torchvision make of them.

    apt-get install libjpeg-progs && pip install pillow torch torchvision scikit-image && ./make.py

The pictures are parts of scikit-image's "coffee" (by Rachel Michetti, CC0) and "cat" (Chelsea, by Stefan van der Walt,
CC0). expected.json names, for each case, the file, the steps and the PNG with the result.
"""

import json
import pathlib
import shutil
import subprocess
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image, ImageOps
from torchvision.io import decode_jpeg
from torchvision.transforms import v2

here = pathlib.Path(__file__).parent
source = pathlib.Path(find_spec("skimage").origin).parent / "data"
coffee = Image.open(source / "coffee.png").convert("RGB")
cat = Image.open(source / "chelsea.png").convert("RGB")

coffee.crop((60, 12, 560, 387)).save(here / "photo.jpg", quality=90, subsampling="4:2:0")
small = cat.crop((110, 20, 350, 200))  # 240 x 180
odd = cat.crop((110, 20, 323, 181))  # 213 x 161

for name, picture, options in [
    ("444.jpg", small, dict(subsampling="4:4:4")),
    ("422.jpg", small, dict(subsampling="4:2:2")),
    ("420.jpg", small, dict(subsampling="4:2:0")),
    ("odd.jpg", odd, dict(subsampling="4:2:0")),
    ("progressive.jpg", odd, dict(subsampling="4:2:0", progressive=True)),
    ("grey.jpg", small.convert("L"), {}),
    ("restart.jpg", odd, dict(subsampling="4:2:0", restart_marker_blocks=3)),
    ("rgb.jpg", small, dict(keep_rgb=True)),
    ("cmyk.jpg", small.convert("CMYK"), {}),
    ("large.jpg", coffee.resize((1400, 933), Image.BICUBIC), dict(subsampling="4:2:0")),
]:
    picture.save(here / name, quality=85, **options)
for orientation in range(1, 9):
    exif = Image.Exif()
    exif[0x0112] = orientation
    small.resize((60, 40)).save(here / f"exif{orientation}.jpg", quality=90, subsampling="4:4:4", exif=exif)

small.save(here / "rgb.png")
small.convert("L").save(here / "grey.png")
small.convert("P", palette=Image.ADAPTIVE).save(here / "palette.png")
small.convert("P", palette=Image.ADAPTIVE).save(here / "palette.gif")
seen = small.convert("RGBA")
seen.putalpha(Image.linear_gradient("L").resize(small.size))
seen.save(here / "alpha.png")
small.save(here / "lossy.webp", quality=80)
small.save(here / "lossless.webp", lossless=True)
seen.save(here / "alpha.webp", quality=80, exact=True)

cases = []


def expect(file, made, by, **steps):
    name = f"expected-{len(cases):02}.png"
    made.save(here / name, optimize=True)
    cases.append(dict(file=file, by=by, result=name, **steps))


def centre(picture, width, height):
    left, top = round((picture.width - width) / 2), round((picture.height - height) / 2)
    return picture.crop((left, top, left + width, top + height))


def pillow(file, orient=False):
    picture = Image.open(here / file)
    if orient:
        picture = ImageOps.exif_transpose(picture)
    return picture.convert("RGB")


for file in sorted(p.name for p in here.iterdir() if p.suffix in (".jpg", ".png", ".gif", ".webp") and not p.name.startswith(("expected", "exif", "large", "narrow", "restarts", "partial", "separate"))):
    picture = pillow(file)
    expect(file, centre(picture, 150, 130).resize((96, 80), Image.BILINEAR), "Pillow", crop=[150, 130], size=[96, 80])
    if file in ("420.jpg", "rgb.png", "odd.jpg"):
        expect(file, centre(picture, 60, 50).resize((96, 80), Image.BILINEAR), "Pillow", crop=[60, 50], size=[96, 80])
expect("large.jpg", pillow("large.jpg").resize((120, 90), Image.BILINEAR), "Pillow", crop=[1400, 933], size=[120, 90])
expect("large.jpg", centre(pillow("large.jpg"), 1200, 900).resize((120, 90), Image.BILINEAR), "Pillow", crop=[1200, 900], size=[120, 90])
for orientation in range(1, 9):
    file = f"exif{orientation}.jpg"
    picture = pillow(file, orient=True)
    expect(file, centre(picture, 36, 34).resize((32, 32), Image.BILINEAR), "Pillow", crop=[36, 34], size=[32, 32], orient=True)

for file in ("photo.jpg", "420.jpg", "odd.jpg", "large.jpg", "422.jpg"):
    tensor = decode_jpeg(torch.frombuffer(bytearray((here / file).read_bytes()), dtype=torch.uint8), mode="RGB")
    steps = v2.Compose([v2.Resize(128, antialias=True), v2.CenterCrop(112)])
    made = Image.fromarray(steps(tensor).permute(1, 2, 0).numpy())
    expect(file, made, "torchvision", shorter=128, size=[112, 112])

# libjpeg doesn't smooth chroma planes that are less than three pixels wide.
stripes = np.zeros((6, 4, 3), np.uint8)
stripes[:, :2, 0] = stripes[:, 2:, 2] = 200
stripes[3:, :, 1] = 150
for subsampling in ("420", "422"):
    file = f"narrow{subsampling}.jpg"
    Image.fromarray(stripes).save(here / file, quality=90, subsampling=":".join(subsampling))
    expect(file, pillow(file), "Pillow", crop=[4, 6], size=[4, 6])

for name, of in {"coffee": ("exif1.jpg", "exif6.jpg"), "stripes": ("narrow420.jpg", "narrow422.jpg")}.items():
    (here / "classes" / name).mkdir(parents=True, exist_ok=True)
    for file in of:
        shutil.copy(here / file, here / "classes" / name)

# Subsampled inks.
small.resize((60, 40)).convert("CMYK").save(here / "inks.jfif", quality=90, subsampling="4:2:0")
expect("inks.jfif", pillow("inks.jfif"), "Pillow", crop=[60, 40], size=[60, 40])

# Small intervals in each scan.
odd.save(here / "restarts-progressive.jpg", quality=85, subsampling="4:2:0", progressive=True, restart_marker_blocks=3)
expect("restarts-progressive.jpg", centre(pillow("restarts-progressive.jpg"), 150, 130).resize((96, 80), Image.BILINEAR), "Pillow", crop=[150, 130], size=[96, 80])

# One scan per component.
scans = here / "scans"
scans.write_text("0;\n1;\n2;\n")
subprocess.run(["jpegtran", "-scans", scans, "-outfile", here / "separate.jpg", here / "odd.jpg"], check=True)
scans.unlink()

# The first picture doesn't fill the frame.
for file, options in (("partial.webp", dict(quality=80)), ("partial-lossless.webp", dict(lossless=True)), ("partial-alpha.webp", dict(quality=80))):
    first, second = Image.new("RGBA", (75, 50)), Image.new("RGBA", (75, 50))
    first.paste((seen if "alpha" in file else small).resize((40, 30)), (12, 8))
    second.paste((200, 100, 50, 255), (0, 0, 75, 50))
    first.save(here / file, save_all=True, append_images=[second], duration=100, exact=True, **options)
    expect(file, pillow(file), "Pillow", crop=[75, 50], size=[75, 50])

colours = []
tensor = torch.from_numpy(np.array(small.resize((48, 36)))).permute(2, 0, 1)
Image.fromarray(tensor.permute(1, 2, 0).numpy()).save(here / "colours.png")
for kind, f, factor in [
    ("brightness", v2.functional.adjust_brightness, 1.3),
    ("contrast", v2.functional.adjust_contrast, 0.7),
    ("contrast", v2.functional.adjust_contrast, 1.4),
    ("saturation", v2.functional.adjust_saturation, 1.6),
    ("saturation", v2.functional.adjust_saturation, 0.3),
    ("hue", v2.functional.adjust_hue, 0.2),
    ("hue", v2.functional.adjust_hue, -0.45),
    ("grayscale", lambda t, _: v2.functional.rgb_to_grayscale(t, 3), 0.0),
]:
    name = f"expected-colours-{len(colours)}.png"
    Image.fromarray(f(tensor, factor).permute(1, 2, 0).numpy()).save(here / name, optimize=True)
    colours.append(dict(kind=kind, factor=factor, result=name))

# What is drawn: quantiles 0, 0.01 ... 1 over 100 000 draws, for a picture of 500 x 375.
torch.manual_seed(0)
crop, erase = v2.RandomResizedCrop(224), v2.RandomErasing(p=1)
frame = torch.zeros(3, 375, 500)
draws = {name: [] for name in ("crop area", "crop ratio", "crop left", "crop top", "erased area", "erased ratio", "erased left", "erased top")}
for _ in range(100_000):
    for what, drawn, ratio in (("crop", crop.make_params([frame]), lambda h, w: w / h), ("erased", erase.make_params([frame]), lambda h, w: h / w)):
        top, left, h, w = (drawn.get(k) for k in (("top", "left", "height", "width") if what == "crop" else ("i", "j", "h", "w")))
        for name, value in (("area", h * w), ("ratio", ratio(h, w)), ("left", left), ("top", top)):
            draws[f"{what} {name}"].append(value)
quantiles = {name: np.round(np.quantile(values, np.linspace(0, 1, 101)), 5).tolist() for name, values in draws.items()}

(here / "expected.json").write_text(
    json.dumps(
        dict(colours=colours, quantiles=quantiles, pillow=PIL.__version__, torchvision=torchvision.__version__, torch=torch.__version__, scikit_image=version("scikit-image"), cases=cases),
        indent=1,
    )
    + "\n"
)
