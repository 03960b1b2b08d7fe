"""A server of one's own, beside this process."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import weakref

from .loader import Loader
from .wire import Error


class ImageFolder(Loader):
    """The photographs of a folder, one folder per class, loaded by a program beside this process.

    batch["image"] is uint8, [batch_size, 3, size, size], and batch["class"] int64. shuffle is the
    seed of the order; None: in order. train crops and flips at random. workers is how many are
    loaded at a time; 0: tuned at the start. The program ends with close, or with this process.
    """

    def __init__(self, path, *, batch_size=64, size=224, shuffle=None, train=False, workers=0, program=None, **kwargs):
        flags = {"images": os.fspath(path), "batch": batch_size, "size": size, "workers": workers}
        if shuffle is not None:
            flags["shuffle"] = shuffle
        if train:
            flags["train"] = "true"
        self._program = _Program(program or find(), flags)
        try:
            super().__init__([self._program.address], token=self._program.token, **kwargs)
        except BaseException:
            self._program.close()
            raise

    def _ended(self):
        return self._program.ended()

    def close(self):
        super().close()
        self._program.close()


def find():
    """The program of the wheel, or another nwt-serve."""
    own = os.path.join(os.path.dirname(__file__), "bin", "nwt-serve")
    found = own if os.path.exists(own) else shutil.which("nwt-serve")
    if not found:
        raise Error("the program nwt-serve isn't there: go install github.com/nwt-go/nwt/serve/cmd/nwt-serve@latest")
    return found


class _Program:
    """The program nwt-serve, until close or until this process ends."""

    def __init__(self, program, flags):
        self.token = secrets.token_hex(16)
        self._said = tempfile.TemporaryFile()
        with tempfile.TemporaryDirectory(prefix="nwt-") as folder:  # only until the program has begun
            told, token = os.path.join(folder, "address"), os.path.join(folder, "token")
            with open(token, "w") as file:
                file.write(self.token)
            shared = f"@nwt-{secrets.token_hex(16)}" if sys.platform == "linux" else ""
            flags = {**flags, "shared": shared, "listen": "127.0.0.1:0", "address-file": told, "token-file": token, "parent": os.getpid()}
            self._process = subprocess.Popen(
                [program, *(f"-{name}={value}" for name, value in flags.items())],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                start_new_session=True,  # Ctrl-C is for this process
            )
            self.close = weakref.finalize(self, _stop, self._process, self._said, os.getpid())
            try:
                while not os.path.exists(told):
                    if why := self.ended():
                        raise Error(why)
                    time.sleep(0.01)
                with open(told) as file:
                    self.address = f"shared:{shared}" if shared else file.read()
            except BaseException:
                self.close()
                raise

    def ended(self):
        """Why the program has ended; None while it runs."""
        status = self._process.poll()
        if status is None:
            return None
        if self._said.closed:
            return "the loader is closed"
        file, most = self._said.fileno(), 2000
        said = os.pread(file, most, max(0, os.fstat(file).st_size - most)).decode(errors="replace").strip()
        return f"nwt-serve has ended, {'by signal' if status < 0 else 'with status'} {abs(status)}: {said}"


def _stop(process, said, pid):
    if os.getpid() != pid:
        return  # a fork's exit doesn't end it
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    said.close()
