"""The processes that make samples in Python: a template, and a child of it for each worker.

nwt-serve starts the template with the interpreter of the training program. The template reads the
dataset, or the function that changes pictures, once, and forks a child whenever nwt-serve asks for
one. It has one thread and never makes a sample, so that a fork copies no lock that another thread
holds. If it has more threads, and where forks aren't safe, each child is an interpreter of its own.
"""

from __future__ import annotations

import contextlib
import gc
import json
import mmap
import os
import pickle
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, NoReturn

import numpy as np
import numpy.typing as npt

from . import _check as check
from ._wire import Error

# Starts the template, or with a number a child that can't be forked; argv: the folder of nwt, and that number.
PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from nwt import _children; _children.run(*map(int, sys.argv[1:]))"
SOCKET, MEMORY, SETUP = 3, 4, 5  # descriptors of such a process
FORK, KILL = 1, 2  # what the template is asked for
DESCRIBE, LAYOUT, LOAD = 1, 2, 3  # what a child is asked for
MADE, BAD = 1, 2  # the status of a sample
OBJECTS = "__objects__"  # the field of what is neither an array nor a number

RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # nwt-serve has others of these than the program

_rest: Callable[[], NoReturn] | None = None  # what the template does once the training program is at its first loader


def begin() -> None:
    """Called by each loader before it starts anything. In the template the training program gets no further, and what it would do at its end isn't done."""
    if _rest:
        if threading.current_thread() is threading.main_thread():
            _rest()
        raise SystemExit  # of a thread of the program


# What is sent


def told(made: Mapping[str, Any], timeout: float | None, files: list[IO[bytes]]) -> dict[str, Any]:
    """What nwt-serve is told of what makes samples. It inherits the files, which live as long as the loader."""
    if not sys.executable:
        raise Error("sys.executable is empty: samples are made by processes of this interpreter, and it isn't known")
    begin()
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return {
        "command": [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", PROGRAM, folder],  # type: ignore[attr-defined]
        "setup": held(setup(made), files),
        "stderr": kept(os.fdopen(os.dup(2), "wb", buffering=0), files),
        "timeout": 0 if timeout is None else check.number("timeout", timeout, 1e-3, 1e9),
    }


def known(options: Mapping[str, Any]) -> int | None:
    """How many processes will make samples. None if nwt-serve decides it, which it does later."""
    workers: int | None = options.get("num_workers")
    return None if workers is None or options.get("tune") else workers or 1


def held(data: bytes, files: list[IO[bytes]]) -> int:
    """Adds a file with data."""
    file = tempfile.TemporaryFile()
    file.write(data)
    file.flush()
    return kept(file, files)


def kept(file: IO[bytes], files: list[IO[bytes]]) -> int:
    """Adds a file, and returns its descriptor."""
    files.append(file)
    return file.fileno()


def setup(made: Mapping[str, Any]) -> bytes:
    """What the template reads: where modules and the main program are, and the pickled dataset."""
    from multiprocessing import spawn

    found = spawn.get_preparation_data("nwt")
    main = {key: found[key] for key in ("init_main_from_name", "init_main_from_path") if key in found}
    if not os.path.exists(main.get("init_main_from_path", "/")) or main.get("init_main_from_name", "").endswith("__main__"):
        main = {}
    made = dict(made)
    workers = made.pop("workers", None)  # not in what samples depend on, of which nwt-serve takes a hash
    ranks = {name: os.environ.get(name) for name in RANKS}
    header = json.dumps({"path": found["sys_path"], "argv": found["sys_argv"], "dir": os.getcwd(), "ranks": ranks, "workers": workers, **main}).encode()
    return b"".join(struct.pack("<Q", len(part)) + part for part in (header, _pickled(made, not main)))


def _pickled(made: dict[str, Any], inside: bool) -> bytes:
    """The dataset or function as bytes; inside: there is no file of the main program that the template could execute."""
    what = "transform" if "transform" in made else "dataset"
    try:
        data = pickle.dumps(made, protocol=5)
        if not (inside and b"__main__" in data):
            return data
        problem = "is defined at a prompt, in a notebook or in a __main__.py"
    except Exception as error:
        problem = f"can't be copied to other processes: {error}"
        if not isinstance(error, (pickle.PicklingError, AttributeError)):  # cloudpickle can't help
            raise TypeError(f"the {what} {problem}: let __getitem__ open files, connections and locks, and __getstate__ leave them out") from None
    try:
        import cloudpickle  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise TypeError(f"the {what} {problem}: move it into a module, or pip install cloudpickle") from None
    return bytes(cloudpickle.dumps(made, protocol=5))


def _exactly(conn: socket.socket, n: int) -> bytes:
    parts = bytearray()
    while len(parts) < n:
        if not (part := conn.recv(min(n - len(parts), 1 << 20))):
            raise EOFError
        parts += part
    return bytes(parts)


# The template


def run(number: int = -1) -> NoReturn:
    conn = socket.socket(fileno=SOCKET)
    if number >= 0:
        _end_after(lambda: _read_setup(open(SETUP, "rb").read, lambda made: _Child(made, conn, MEMORY, number).serve()))
    template = _Template(conn)
    _end_after(lambda: _read_setup(template.read, template.serve, template.tell), template.tell)


def _end_after(job: Callable[[], None], tell: Callable[..., None] | None = None) -> NoReturn:
    """Ends this process after a job, wherever it is on the stack. What goes wrong is told, or printed."""
    status = 1
    try:
        job()
        status = 0
    except BaseException as error:
        if tell:
            tell(failed=_text(error))
        elif not isinstance(error, (EOFError, ConnectionError)):  # else nwt-serve has ended, or needs this process no more
            traceback.print_exc()
    finally:
        _leave(status)


def _leave(status: int) -> NoReturn:
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _read_setup(read: Callable[[int], bytes], serve: Callable[[dict[str, Any]], None], tell: Callable[..., None] | None = None) -> None:
    """Executes the training program up to its first loader, and there serves."""
    global _rest
    header, payload = (read(struct.unpack("<Q", read(8))[0]) for _ in range(2))
    told = json.loads(header)
    sys.path[:], sys.argv[:] = told["path"], told["argv"]
    os.chdir(told["dir"])
    for name, value in told["ranks"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    def rest() -> NoReturn:
        global _rest
        _rest = None
        _end_after(lambda: serve({**_unpickled(payload), "workers": told["workers"]}), tell)

    _rest = rest
    _read_main(told.get("init_main_from_name"), told.get("init_main_from_path"))
    rest()


def _unpickled(payload: bytes) -> dict[str, Any]:
    try:
        return dict(pickle.loads(payload))
    except AttributeError as error:
        if "__mp_main__" not in str(error):
            raise
        raise AttributeError(f"{error}: define it above the first loader of the program, outside if __name__ == '__main__', or in a module") from None


def _read_main(name: str | None, path: str | None) -> None:
    """Executes the training program up to its first loader, under the name __mp_main__."""
    module = types.ModuleType("__mp_main__")
    if name is not None:
        import importlib.util

        spec = importlib.util.find_spec(name)
        assert spec and spec.loader
        code, module.__file__ = spec.loader.get_code(name), spec.origin  # type: ignore[attr-defined]
        module.__package__ = spec.parent
    elif path is not None:
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec")
        module.__file__ = path
    else:
        return
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    try:
        exec(code, module.__dict__)  # noqa: S102  # the program itself
    except (Exception, SystemExit) as error:  # it may have looked for a GPU, or for other ranks
        print(
            f"nwt: {path or name} was executed once more for the workers, and failed above its first loader. They know only what stands before that. "
            f"Put what failed under if __name__ == '__main__':, or below the loader: {_text(error)}",
            file=sys.stderr,
        )


class _Template:
    def __init__(self, conn: socket.socket) -> None:
        self.conn, self.kept = conn, b""
        self.children: dict[int, int] = {}  # pid to number
        self.spawned: list[subprocess.Popen[bytes]] = []

    def tell(self, **what: Any) -> None:
        self.conn.sendall(json.dumps(what).encode() + b"\n")

    def read(self, n: int) -> bytes:
        part = _exactly(self.conn, n)
        self.kept += part
        return part

    def serve(self, made: dict[str, Any]) -> None:
        self.made = made
        self.wake, self.awake = socket.socketpair()
        self.wake.setblocking(False)
        self.awake.setblocking(False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whatever the program has set
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.awake.fileno())
        self.forks = sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1
        if self.forks:
            self.kept = b""  # only spawn needs it
            gc.collect()
            gc.freeze()  # else a collection in a child writes to every page
        self.tell(ready=True)
        _end_after(self.answer)

    def answer(self) -> None:
        import select

        try:
            while True:
                ready = select.select([self.conn, self.wake], [], [])[0]
                if self.wake in ready:
                    with contextlib.suppress(BlockingIOError):
                        self.wake.recv(4096)
                    self.reap()
                if self.conn in ready:
                    self.obey()
        finally:
            for pid in self.children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def obey(self) -> None:
        head, fds, _, _ = socket.recv_fds(self.conn, 8, 2)
        if not head:
            raise EOFError
        while len(head) < 8:
            head += _exactly(self.conn, 8 - len(head))
        what, number = struct.unpack("<II", head)
        if what == KILL:
            for pid, child in self.children.items():
                if child == number:
                    os.kill(pid, signal.SIGKILL)
            return
        try:
            pid = self.fork(number, *fds) if self.forks else self.spawn(number, *fds)
            self.children[pid] = number
            self.tell(child=number, pid=pid)
        except OSError as error:
            self.tell(child=number, failed=str(error))
        finally:
            for fd in fds:
                os.close(fd)

    def fork(self, number: int, conn: int, memory: int) -> int:
        return os.fork() or _end_after(lambda: self.child(number, conn, memory))

    def child(self, number: int, conn: int, memory: int) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for one in (self.conn, self.wake, self.awake):
            one.close()
        with socket.socket(fileno=conn) as own:
            _Child(self.made, own, memory, number).serve()

    def spawn(self, number: int, conn: int, memory: int) -> int:
        with tempfile.TemporaryFile() as file:
            file.write(self.kept)
            file.seek(0)
            # the descriptors in their places, by way of numbers that none of them has
            passed = (conn, memory, file.fileno())
            free = max(passed) + 1
            program = f"import os; [os.dup2(a, {free} + i) for i, a in enumerate({passed})]; [os.dup2({free} + i, 3 + i) for i in range(3)]; " + PROGRAM
            argv = [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", program, os.path.dirname(os.path.dirname(__file__)), str(number)]  # type: ignore[attr-defined]
            self.spawned.append(subprocess.Popen(argv, pass_fds=passed))  # kept: else the next Popen would reap it
            return self.spawned[-1].pid

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            number = self.children.pop(pid, None)
            if number is not None:
                self.tell(child=number, ended=os.waitstatus_to_exitcode(status))


# A child


def _text(error: BaseException) -> str:
    """The last lines of a traceback, without this module's."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace, limit=-2)
    hint = ": workers know only what stands above the first loader" if type(error) is NameError else ""
    return "".join(lines[1:] if lines[0].startswith("Traceback") else lines).strip()[-2000:] + hint


class _Child:
    """Makes samples, and writes them into memory that it shares with nwt-serve."""

    def __init__(self, made: dict[str, Any], conn: socket.socket, memory: int, number: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.conn, self.read = conn, conn.makefile("rb").read
        self.dataset, self.transform = made.get("dataset"), made.get("transform")
        self.temporary = (ConnectionError, TimeoutError, *made.get("retryable", ()))
        self.ragged, self.whole, self.objects = made.get("ragged") or {}, bool(made.get("whole")), int(made.get("objects") or 4 << 20)
        size = os.fstat(memory).st_size
        self.memory = mmap.mmap(memory, size) if size else None
        os.close(memory)
        self.seeds = self._seeds()
        self.input: Any = None  # the field of what is changed
        self.draws = self.transform is not None and _takes_two(self.transform)
        self.init, self.number = made.get("init"), number
        if "torch" in sys.modules:
            from torch.utils.data._utils import worker

            info = types.SimpleNamespace(id=number, num_workers=made.get("workers"), seed=number, dataset=self.dataset)
            worker._worker_info = info  # type: ignore[assignment]  # for get_worker_info

    def _seeds(self) -> list[Callable[[int], object]]:
        """What is seeded before each sample."""
        seeds: list[Callable[[int], object]] = [random.seed, lambda seed: np.random.seed(seed & 0xFFFFFFFF)]
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)  # first: a pool of threads doesn't survive a fork
            seeds.append(torch.default_generator.manual_seed)
        return seeds

    def serve(self) -> None:
        while head := self.read(8):
            what, n = struct.unpack("<II", head)
            if what == LOAD:
                self.load(struct.unpack(f"<{2 * n}Q", self.read(16 * n)))
            elif what == LAYOUT:
                self.lay_out(json.loads(self.read(n)))
                continue
            else:
                self.say(self.describe())
            self.conn.sendall(bytes(4))  # that is all

    def say(self, answer: Any) -> None:
        text = json.dumps(answer).encode()
        self.conn.sendall(struct.pack("<I", len(text)) + text)

    def make(self, index: int, place: int, seed: int) -> Any:
        if self.init is not None:
            self.init(self.number)
            self.init = None
        for seeds in self.seeds:
            seeds(seed)
        if self.transform is None:
            what, sample = "__getitem__", self.dataset[index]  # type: ignore[index]
        else:
            drawn = (np.random.default_rng(seed),) if self.draws else ()
            what, sample = "transform", self.transform(self.input["view"][place], *drawn)
        if sample is None and not self.whole:
            raise ValueError(f"{what} has returned None: raise an exception, and give errors=N, which leaves the sample out")
        return sample

    def load(self, pairs: tuple[int, ...]) -> None:
        memory = self.memory
        assert memory is not None
        for place in range(len(pairs) // 2):
            try:
                self.put(place, self.make(pairs[2 * place], place, pairs[2 * place + 1]))
                memory[place] = MADE  # nwt-serve watches it
            except BaseException as error:
                self.say([place, isinstance(error, self.temporary), _text(error)])
                memory[place] = BAD

    # How a sample is divided: ("array", field), ("object", name), ("items", type, [[key, part], …]) or ("parts", type, [part, …])

    def describe(self) -> dict[str, Any]:
        """The fields of the samples, as those of the first one are."""
        import base64

        try:
            n = 1 if self.transform is not None else len(self.dataset)  # type: ignore[arg-type]
            if n == 0:
                return {"n": 0}
            self.fields: list[dict[str, Any]] = []
            sample = self.first(n)
            tree = ("object", "sample") if self.whole else self.divide(sample, "")
            for name in self.ragged:
                if not any(field["name"] == name for field in self.fields):
                    raise ValueError(
                        f"ragged={self.ragged!r}: a sample has no array {name!r}, but {', '.join(field['name'] for field in self.fields) or 'none'}"
                    )
            if any(objects(tree)):
                if self.transform is not None:
                    raise TypeError(f"transform returned no array as {next(objects(tree))!r}: it must return an array or a tensor, or a dict of them")
                self.fields.append({"name": OBJECTS, "dtype": "uint8", "shape": [self.objects], "ragged": True, "rest": True})
            names = [*objects(tree), *(field["name"] for field in self.fields), *(f"{name}.len0" for name in self.ragged)]
            if twice := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"two parts of a sample are named {twice[0]!r}: rename one")
            return {"n": n, "fields": self.fields, "tree": base64.b64encode(pickle.dumps(tree)).decode()}
        except BaseException as error:
            return {"failed": _text(error)}

    def first(self, n: int) -> Any:
        """A sample that isn't bad, if there is one among the first."""
        for index in range(min(n, 10)):
            with contextlib.suppress(Exception):
                return self.make(index, 0, 0)
        return self.make(0, 0, 0)

    def divide(self, value: Any, name: str) -> Any:
        if isinstance(value, Mapping):
            return "items", None, [[key, self.divide(part, f"{name}.{key}" if name else str(key))] for key, part in value.items()]
        if isinstance(value, (list, tuple)):
            return "parts", type(value), [self.divide(part, f"{name}.{i}" if name else str(i)) for i, part in enumerate(value)]
        array, name = _array(value), name or ("0" if self.transform is None else "image")
        if array is None:
            return "object", name
        shape = list(array.shape)
        if longest := self.ragged.get(name):
            if not shape:
                raise ValueError(f"ragged={self.ragged!r}: {name!r} is a number and has no length")
            shape[0] = int(longest)
        if 0 in shape:
            raise ValueError(
                f"field {name!r} of the first sample has the shape {tuple(array.shape)}, without elements: say ragged={{{name!r}: 512}} with the longest length allowed, or give collate_fn"
            )
        self.fields.append({"name": name, "dtype": _dtype(value, array), "shape": shape, "ragged": bool(longest)})
        return "array", len(self.fields) - 1

    def lay_out(self, told: dict[str, Any]) -> None:
        """Finds the fields' places in the memory."""
        import base64

        memory, slots = self.memory, told["slots"]
        self.fields, self.input = told["fields"] or [], told.get("input")
        self.tree = pickle.loads(base64.b64decode(told["tree"])) if told["tree"] else ()
        for field in self.fields + ([self.input] if self.input else []):
            kind = np.dtype({"bfloat16": "uint16"}.get(field["dtype"], field["dtype"]))
            shape = tuple(field["shape"])
            inner = np.ndarray(shape, kind).strides if 0 not in shape else ()
            field["view"] = np.ndarray((slots, *shape), kind, memory, field["offset"], (told["stride"], *inner))
            field["lens"] = np.ndarray((slots,), np.int32, memory, field["lens"], (told["stride"],)) if field["ragged"] else None
            field["shape"], field["kind"] = shape, kind

    def put(self, place: int, sample: Any) -> None:
        objects: list[Any] = []
        self.put_part(place, sample, self.tree, objects)
        if objects:
            data = pickle.dumps(objects, protocol=5)
            field = self.fields[-1]
            if len(data) > field["shape"][0]:
                raise ValueError(
                    f"what isn't an array takes {len(data)} bytes in this sample, at most {field['shape'][0]} are allowed: say object_bytes={1 << len(data).bit_length()}"
                )
            field["view"][place, : len(data)] = np.frombuffer(data, np.uint8)
            field["lens"][place] = len(data)

    def put_part(self, place: int, value: Any, tree: Any, objects: list[Any]) -> None:
        if tree[0] == "array":
            self.put_array(place, value, self.fields[tree[1]])
        elif tree[0] == "object":
            objects.append(value)
        elif tree[0] == "items":
            if not isinstance(value, Mapping) or len(value) != len(tree[2]):
                raise ValueError(
                    f"the sample has {_shortly(value)}, and the first one a dict of {', '.join(str(key) for key, _ in tree[2])}: samples must be alike, or give collate_fn"
                )
            for key, part in tree[2]:
                if key not in value:
                    raise ValueError(f"the sample has no {key!r}, which the first one has: samples must be alike, or give collate_fn")
                self.put_part(place, value[key], part, objects)
        else:
            if not isinstance(value, (list, tuple)) or len(value) != len(tree[2]):
                raise ValueError(f"the sample has {_shortly(value)}, and the first one has {len(tree[2])} parts: samples must be alike, or give collate_fn")
            for one, part in zip(value, tree[2]):
                self.put_part(place, one, part, objects)

    def put_array(self, place: int, value: Any, field: dict[str, Any]) -> None:
        array, shape = _array(value), field["shape"]
        if array is None:
            raise ValueError(f"field {field['name']!r}: {_shortly(value)}, and the first one has an array of {field['dtype']}")
        if array.dtype != field["kind"] and (field["dtype"] == "bfloat16" or not np.can_cast(array.dtype, field["kind"])):
            raise ValueError(
                f"field {field['name']!r} is {array.dtype}, and in the first sample it is {field['dtype']}: samples must have one type, so convert it"
            )
        if field["ragged"]:
            if array.ndim != len(shape) or array.shape[1:] != shape[1:] or len(array) > shape[0]:
                raise ValueError(
                    f"field {field['name']!r} has the shape {array.shape}: at most {shape} is allowed; say ragged={{{field['name']!r}: {2 * shape[0]}}}"
                )
            field["view"][place, : len(array)] = array
            field["lens"][place] = len(array)
        elif array.shape != shape:
            advice = f"if its length varies say ragged={{{field['name']!r}: 512}} with the longest allowed, or give collate_fn"
            raise ValueError(
                f"field {field['name']!r} has the shape {array.shape}, and in the first sample {shape}: {advice if self.transform is None else 'transform must always return one shape'}"
            )
        else:
            field["view"][place] = array


def _takes_two(function: Callable[..., Any]) -> bool:
    """Whether a function takes a generator of random numbers beside the picture."""
    import inspect

    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and (p.default is p.empty or p.name == "rng")]
    return len(needed) > 1


def objects(tree: Any) -> Iterator[str]:
    """The names of what is neither an array nor a number."""
    if tree[0] == "object":
        yield tree[1]
    elif tree[0] != "array":
        for part in tree[2]:
            yield from objects(part[1] if tree[0] == "items" else part)


def _array(value: Any) -> npt.NDArray[Any] | None:
    """The value as an array, if it is an array, a tensor or a number, else None."""
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind in "biufc" else None
    if isinstance(value, (int, float, np.generic)):  # bool is an int
        array = np.asarray(value)
        return array if array.dtype.kind in "biufc" else None
    torch = sys.modules.get("torch")
    if torch and isinstance(value, torch.Tensor):
        value = value.detach()
        if value.dtype == torch.bfloat16:
            return value.view(torch.int16).numpy().view(np.uint16)  # type: ignore[no-any-return]
        return value.numpy()  # type: ignore[no-any-return]
    return None


def _dtype(value: Any, array: npt.NDArray[Any]) -> str:
    torch = sys.modules.get("torch")
    return "bfloat16" if torch and isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 else array.dtype.newbyteorder("=").name


def _shortly(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.60}"
