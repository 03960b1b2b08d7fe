#!/usr/bin/env python3
"""Writes bcryptprimitives.dll, which Go needs on Windows and wine 8 lacks.

It has no code: its one function is that of another library under its old name.
"""

import struct
import sys

RVA = 0x1000  # where the only section lies in memory


def export(dll, function, target):
    directory = 40
    addresses, names, ordinals = directory, directory + 4, directory + 8
    strings = directory + 10
    at = {}
    text = b""
    for s in (dll, function, target):
        at[s] = RVA + strings + len(text)
        text += s.encode() + b"\0"
    return struct.pack(
        "<IIHHIIIIIII", 0, 0, 0, 0, at[dll], 1, 1, 1, RVA + addresses, RVA + names, RVA + ordinals
    ) + struct.pack("<IIH", at[target], at[function], 0) + text


section = export("bcryptprimitives.dll", "ProcessPrng", "advapi32.SystemFunction036")
optional = struct.pack("<HBBIIIII", 0x20B, 14, 0, 0, 512, 0, 0, RVA)
optional += struct.pack("<QIIHHHHHHIIIIHH", 0x180000000, 0x1000, 0x200, 6, 0, 0, 0, 6, 0, 0, 0x2000, 0x200, 0, 2, 0x100)
optional += struct.pack("<QQQQII", 0x100000, 0x1000, 0x100000, 0x1000, 0, 16)
optional += struct.pack("<II", RVA, len(section)) + bytes(8 * 15)
coff = b"PE\0\0" + struct.pack("<HHIIIHH", 0x8664, 1, 0, 0, 0, len(optional), 0x2022)
table = b".edata\0\0" + struct.pack("<IIIIIIHHI", len(section), RVA, 512, 512, 0, 0, 0, 0, 0x40000040)
dos = b"MZ" + bytes(58) + struct.pack("<I", 64)
with open(sys.argv[1], "wb") as f:
    f.write((dos + coff + optional + table).ljust(512, b"\0") + section.ljust(512, b"\0"))
