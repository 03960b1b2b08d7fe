"""A photograph's way to its place in a batch, as short as Python's libraries allow: for the peers that leave it to the
program.

How a file is decoded:

  simplejpeg  libjpeg-turbo, the whole picture, into a buffer that is used again
  cropping    libjpeg-turbo 3.1 or later (setup builds it): only rows and columns of the crop
  scaled      the same; of large crops at 1/2 to 1/8, so that twice the crop's size in the batch is left

Then torch resizes the crop, antialiased, over bytes, and mirrors and normalises it in its place.
"""

import ctypes
import pathlib
import random
import threading

import numpy as np
import simplejpeg
import torch

import photos

torch.set_num_threads(1)  # a thread of the loader's is one thread
LIBRARY = pathlib.Path(__file__).parent / ".venv" / "lib" / "libturbojpeg.so"
MEAN, SCALE = 255 * torch.tensor(photos.MEAN)[:, None, None], 1 / (255 * torch.tensor(photos.STD)[:, None, None])
local = threading.local()  # of a thread: its buffer and its decoder


def buffer(size):
    if getattr(local, "buffer", None) is None or local.buffer.size < size:
        local.buffer = np.empty(size, np.uint8)
    return local.buffer


def whole(data, window, _):
    x, y, w, h = window
    height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    return simplejpeg.decode_jpeg(data, buffer=buffer(height * width * 3))[y : y + h, x : x + w]


class Region(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("x", "y", "w", "h")]


class Factor(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("num", "denom")]


def library():
    if not LIBRARY.exists():
        raise ImportError(f"{LIBRARY} isn't there: setup builds it")
    turbo = ctypes.CDLL(str(LIBRARY))
    turbo.tj3Init.restype = ctypes.c_void_p
    turbo.tj3SetCroppingRegion.argtypes = [ctypes.c_void_p, Region]
    turbo.tj3SetScalingFactor.argtypes = [ctypes.c_void_p, Factor]
    turbo.tj3DecompressHeader.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    turbo.tj3Get.argtypes = [ctypes.c_void_p, ctypes.c_int]
    turbo.tj3Decompress8.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    return turbo


WIDTH, HEIGHT, UNIT = 5, 6, 16  # TJPARAM_JPEGWIDTH and TJPARAM_JPEGHEIGHT; a block of 4:2:0 in pixels


def part(data, window, scaled):
    x, y, w, h = window
    if getattr(local, "decoder", None) is None:
        local.turbo = library()
        local.decoder = local.turbo.tj3Init(1)
    turbo, decoder = local.turbo, local.decoder
    turbo.tj3SetCroppingRegion(decoder, Region(0, 0, 0, 0))
    turbo.tj3DecompressHeader(decoder, data, len(data))
    by = 1
    while scaled and by < 8 and min(w, h) >= 2 * 2 * by * photos.SIDE:
        by *= 2
    turbo.tj3SetScalingFactor(decoder, Factor(1, by))
    unit = UNIT // by  # where a region may begin
    width, height = -(-turbo.tj3Get(decoder, WIDTH) // by), -(-turbo.tj3Get(decoder, HEIGHT) // by)
    left, top = x // by // unit * unit, y // by
    across, down = min(width, -(-(x + w) // by)) - left, min(height, -(-(y + h) // by)) - top
    pixels = buffer(across * down * 3)
    if turbo.tj3SetCroppingRegion(decoder, Region(left, top, across, down)):
        raise RuntimeError("libjpeg-turbo can't crop so")
    if turbo.tj3Decompress8(decoder, data, len(data), pixels.ctypes.data, across * 3, 0):
        raise RuntimeError("libjpeg-turbo can't decode it")
    return pixels[: across * down * 3].reshape(down, across, 3)[:, x // by - left :]


def decoder(way):
    """How a file and a window become a crop in 224 x 224 bytes: uint8 [3, 224, 224]."""
    decode, scaled = {"simplejpeg": (whole, False), "cropping": (part, False), "scaled": (part, True)}[way]
    if decode is part:
        library()

    def crop(path, window):
        with open(path, "rb") as file:
            data = file.read()
        return resized(decode(data, window, scaled))

    return crop


def resized(pixels):
    """uint8 [h, w, 3] to [3, 224, 224]."""
    pixels = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    return torch.nn.functional.interpolate(pixels, size=(photos.SIDE, photos.SIDE), mode="bilinear", antialias=True)[0].contiguous().numpy()


def load(crop, size, path, dst, uniform=random.uniform):
    """Writes a random crop of a file into its place in a batch: bytes as they are, floats normalised."""
    place(crop(path, size.window(uniform)), uniform(0, 1) < 0.5, dst)


def place(pixels, flip, dst):
    pixels, dst = torch.from_numpy(pixels), torch.from_numpy(dst)
    if flip:
        pixels = pixels.flip(2)
    if dst.dtype == torch.float32:
        torch.sub(pixels, MEAN, out=dst).mul_(SCALE)
    else:
        dst.copy_(pixels)
