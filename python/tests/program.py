"""The program nwt-serve, and folders for it to serve. NWT_SERVE names it, or it is built from this checkout."""

import atexit
import functools
import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest
import zlib


@functools.cache
def program():
    given = json.loads(os.environ.get("NWT_TEST", "{}")).get("program") or os.environ.get("NWT_SERVE")
    if given:
        return given
    if not shutil.which("go"):
        raise unittest.SkipTest("NWT_SERVE names no nwt-serve, and there is no Go to build it")
    at = folder() / "nwt-serve"
    subprocess.run(["go", "build", "-o", str(at), "./cmd/nwt-serve"], cwd=pathlib.Path(__file__).parents[2] / "serve", check=True)
    return str(at)


def folder():
    """A folder until the tests end."""
    at = pathlib.Path(tempfile.mkdtemp(prefix="nwt-test-"))
    atexit.register(shutil.rmtree, at, ignore_errors=True)
    return at


def png(path, width, height, value, slope=0):
    """A picture of a grey value, which grows by slope per column."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes((value + slope * x) % 256 for x in range(width))) * height
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


@functools.cache
def pictures(classes=("cat", "dog"), each=10, slope=0):
    """A folder of pictures: the i-th of all has the grey value 10 i."""
    at = folder()
    for k, name in enumerate(sorted(classes)):
        for i in range(each):
            png(at / name / f"{i:03}.png", 40 + i, 50, 10 * (k * each + i) % 256, slope)
    return at
