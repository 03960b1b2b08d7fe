"""Pictures that a function of the program's own changes."""

import functools
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

import numpy as np
import program

import nwt


def same(image):
    return image


def augment(image, rng):
    """Draws from whatever there is."""
    return np.concatenate([image.ravel()[:8], rng.random(1), np.random.random(1), [random.random()]])


def faulty(image, rng, *, folder):
    """Fails for most of the pictures of folder pictures, some of them for a while."""
    value = image[0, 0, 0] // 10
    mark = pathlib.Path(folder, str(value))
    if 0 < value < 8 and not mark.exists():
        mark.touch()
        image[:] = 0
        if value % 2:
            raise ConnectionError("gone for a while")
        os.kill(os.getpid(), signal.SIGKILL)
    if value == 10:
        raise ValueError("no such bird")
    if value == 11:
        time.sleep(1e6)
    return augment(image, rng)[int(value == 13) :]


def text(image):
    return {"image": image, "name": "bird"}


def views(image, rng):
    return {"one": np.float32(image), "two": image[::-1, :, 0] + rng.integers(9, dtype=np.uint8)}


def folder(of=nwt.ImageFolder, data=None, **options):
    options = {"batch_size": 8, "size": 32, "train": True, "color_jitter": 0.3, "shuffle": True, "seed": 5, **options}
    return of(data or program.pictures(), program=program.program(), **options)


def epochs(loader, n=2):
    with loader:
        return [{name: array.copy() for name, array in batch.items()} for _ in range(n) for batch in loader]


class TestTransform(unittest.TestCase):
    def equal(self, some, others):
        self.assertEqual(len(some), len(others))
        for one, other in zip(some, others):
            self.assertEqual(list(one), list(other))
            for name in one:
                np.testing.assert_array_equal(one[name], other[name], name)

    def test_it_gets_the_pictures_that_there_are_without_it(self):
        files = [str(file) for file in sorted(program.pictures().glob("*/*"))]
        for of, data, options in (nwt.ImageFolder, program.pictures(), {}), (nwt.Images, files, {"labels": np.arange(len(files)) % 3}):
            want = epochs(folder(of, data, **options))
            for workers in 1, 3:
                got = epochs(folder(of, data, transform=same, num_workers=workers, **options))
                self.equal(want, [{**batch, "image": batch["image"].transpose(0, 3, 1, 2)} for batch in got])

    def test_what_is_drawn_is_the_same_at_any_number_of_workers_and_after_a_resume(self):
        want = epochs(folder(transform=augment))
        drawn = np.concatenate([batch["image"][:, 8:] for batch in want])
        self.assertEqual(len(np.unique(drawn)), 2 * 20 * 3)  # other numbers in each epoch
        with folder(transform=augment, num_workers=1) as train:
            batches = iter(train)
            self.equal(want[:1], [next(batches)])
            state = train.state_dict()
        for world in 1, 2:
            resumed = [folder(transform=augment, num_workers=3, world_size=world, rank=rank) for rank in range(world)]
            rest = []
            for loader in resumed:
                loader.load_state_dict(state)
                rest += epochs(loader, 1)
            at = {i: row for batch in rest for i, row in zip(batch["index"], batch["image"])}
            left = {i: row for batch in want[1:3] for i, row in zip(batch["index"], batch["image"])}
            self.assertEqual(at.keys(), left.keys())
            for i, row in left.items():
                np.testing.assert_array_equal(at[i], row)
        with folder(transform=functools.partial(faulty, folder=str(program.folder()))) as other, self.assertRaisesRegex(nwt.Error, "saved with other data"):
            other.load_state_dict(state)
            next(iter(other))

    def test_bad_calls_are_left_out_alone_and_killed_processes_lose_nothing(self):
        at = program.folder()
        want = epochs(folder(transform=augment, color_jitter=0), 1)
        with self.assertLogs("nwt", "WARNING") as logged:
            loader = folder(transform=functools.partial(faulty, folder=str(at)), color_jitter=0, timeout=1, errors=3, num_workers=2)
            got = epochs(loader, 1)
        rows = {i: row for batch in got for i, row in zip(batch["index"], batch["image"])}
        self.assertEqual(rows.keys(), set(range(20)) - {10, 11, 13})
        self.assertGreaterEqual(len(list(at.iterdir())), 7)
        for batch in want:
            for i, row in zip(batch["index"], batch["image"]):
                if i in rows:
                    np.testing.assert_array_equal(rows[i][8:], row[8:])
        said = "\n".join(logged.output)
        for text in (
            "dog/000.png",
            "dog/001.png",
            "dog/003.png",
            "in faulty",
            "ValueError: no such bird",
            "no sample within 1s",
            "field 'image' has the shape (10,), and in the first sample (11,)",
        ):
            self.assertIn(text, said)

    def test_it_is_closed_while_another_thread_starts_the_program_again(self):
        loader, closing, got = folder(transform=same), [], []
        files, popen = loader._program._files, subprocess.Popen

        def start(*args, **kwargs):
            closing.append(threading.Thread(target=loader.close))
            closing[0].start()
            closing[0].join(0.2)  # the time to close files, if that were possible now
            got.extend(file.closed for file in files)
            return popen(*args, **kwargs)

        self.assertTrue(files)
        loader._program.process.kill()
        with mock.patch("subprocess.Popen", start), self.assertLogs("nwt"), self.assertRaisesRegex(nwt.Error, "the loader is closed"):
            list(loader)
        closing[0].join()
        self.assertEqual(set(got), {False})
        self.assertTrue(all(file.closed for file in files))
        self.assertIsNotNone(loader._program.process.returncode)

    def test_a_dict_becomes_several_fields_and_the_number_of_processes_is_tuned(self):
        with folder(transform=views, tune=True) as loader:
            self.assertEqual(loader.num_workers, max(1, loader.result.workers))
            for batch in loader:
                self.assertEqual({name: array.shape[1:] for name, array in batch.items()}, {"one": (32, 32, 3), "two": (32, 32), "label": (), "index": ()})

    def test_mistakes_say_what_to_write(self):
        for kind, error, options in (
            (TypeError, "transform=3: must be a function of a picture", {"transform": 3}),
            (TypeError, "the transform can't be copied to other processes: .*move it into a module", {"transform": lambda image: image}),
            (ValueError, "normalize and transform: .*write .image / 255", {"transform": same, "normalize": True}),
            (ValueError, "dtype and transform: .*write image.astype", {"transform": same, "dtype": "float32"}),
            (ValueError, "timeout is for transform", {"timeout": 3}),
            (nwt.Error, "transform returned no array as 'name': it must return an array", {"transform": text}),
            (nwt.Error, "missing 1 required keyword-only argument: 'folder'", {"transform": faulty}),
        ):
            with self.subTest(error), mock.patch.dict(sys.modules, {"cloudpickle": None}), self.assertRaisesRegex(kind, error):
                folder(**options)


if __name__ == "__main__":
    unittest.main()
