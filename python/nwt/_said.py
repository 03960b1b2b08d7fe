"""What nwt-serve writes to stderr: its log goes to logging, and what it ends with becomes an exception."""

from __future__ import annotations

import errno
import json
import logging
import os
import tempfile
from typing import Any

from ._wire import Error, told

logger = logging.getLogger("nwt")

LEVELS = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARN": logging.WARNING, "ERROR": logging.ERROR}


class Said:
    """A file that the program writes to, without a pipe that somebody would have to read."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()
        self._at, self._line = 0, b""
        self.end: dict[str, Any] = {}  # what the program ended with
        self._other = b""  # a panic, say

    def pass_on(self) -> None:
        """Logs what has come, unless another thread has closed the file."""
        while not self.file.closed and (data := self._read()):
            *lines, self._line = (self._line + data).split(b"\n")
            for line in lines:
                self._take(line)

    def _read(self) -> bytes:
        if hasattr(os, "pread"):
            try:
                data = os.pread(self.file.fileno(), 1 << 16, self._at)
            except (OSError, ValueError):
                if not self.file.closed:
                    raise
                return b""
        else:  # on Windows the program has the same position: only once it has ended
            self.file.seek(self._at)
            data = self.file.read(1 << 16)
        self._at += len(data)
        return data

    def _take(self, line: bytes) -> None:
        try:
            record = json.loads(line)
            if "error" in record and "msg" not in record:
                self.end = record
                return
            record.pop("time", None)
            level, text = LEVELS[record.pop("level")], record.pop("msg")
        except (ValueError, TypeError, KeyError, AttributeError):
            self._other = (self._other + line + b"\n")[-2000:]
            return
        about = "".join(f" {name}={value}" for name, value in record.items())
        logger.log(level, "%s%s", text, about, extra={"nwt": record})

    def error(self, status: int) -> Exception:
        """Why the program has ended."""
        self.pass_on()
        if self.end:
            kind = {"missing": errno.ENOENT, "forbidden": errno.EACCES, "no-folder": errno.ENOTDIR}.get(self.end.get("code", ""))
            if kind and (path := self.end.get("path")):
                return OSError(kind, os.strerror(kind), path)  # FileNotFoundError, PermissionError, NotADirectoryError
            return told(self.end["error"], self.end.get("code", ""))
        text = (self._other + self._line).decode(errors="replace").strip()
        return Error(f"nwt-serve has ended, {'by signal' if status < 0 else 'with status'} {abs(status)}" + (f": {text}" if text else ""))
