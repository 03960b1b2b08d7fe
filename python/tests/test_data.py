"""What nwt-serve reads: nothing is lost, and what is wrong is said."""

import io
import json
import logging
import os
import shutil
import tarfile
import time
import unittest

import numpy as np
import program

import nwt


def shard(path, *files):
    """A tar file of names and contents; a content that is a str is what a hard link leads to."""
    with tarfile.open(path, "w") as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            if isinstance(data, str):
                info.type, info.linkname = tarfile.LNKTYPE, data
                tar.addfile(info)
            else:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def picture(value=0):
    at = program.folder() / "1.png"
    program.png(at, 40, 40, value)
    return at.read_bytes()


def indices(loader):
    return sorted(i for batch in loader for i in batch["index"].tolist())


class Shards(unittest.TestCase):
    def refused(self, shards, *texts, good=0):
        """A shard's samples are errors, or are left out if that is allowed."""
        with nwt.WebDataset(shards, batch_size=2, size=32, program=program.program()) as loader:
            for text in texts:
                with self.assertRaisesRegex(nwt.Error, text):
                    list(loader)
        with nwt.WebDataset(shards, batch_size=2, size=32, errors=100, program=program.program()) as loader, self.assertLogs("nwt", "WARNING"):
            self.assertEqual(len(indices(loader)), good)

    def test_a_name_with_dots_is_no_lost_sample(self):
        at, png = program.folder(), picture()
        path = shard(at / "1.tar", ("1.png", png), ("IMG_2024.05.png", png), ("IMG_2024.06.png", png))
        self.refused(path, r"1.tar: IMG_2024: no file jpg or .* it has 05.png, 06.png", good=1)

    def test_a_hard_link_is_no_lost_sample(self):
        at, png = program.folder(), picture()
        path = shard(at / "1.tar", ("1.png", png), ("1.cls", b"0"), ("2.png", "1.png"), ("2.cls", b"1"))
        self.refused(path, "1.tar: 2: its file png is a hard link, which holds no data", good=1)

    def test_a_sample_without_its_picture_is_no_lost_sample(self):
        at, png = program.folder(), picture()
        path = shard(at / "1.tar", ("1.png", png), ("2.txt", b"x"), ("3.png", png))
        self.refused(path, "1.tar: 2: no file jpg or .* it has txt", good=2)

    def test_samples_whose_files_lie_apart_lose_no_label(self):
        at, png = program.folder(), picture()
        path = shard(at / "1.tar", ("1.cls", b"0"), ("2.cls", b"1"), ("1.png", png), ("2.png", png))
        with self.assertLogs("nwt", "WARNING") as logged, nwt.WebDataset(path, size=32, program=program.program()) as loader:
            self.assertIn("a key comes back later in a shard", logged.output[0])
            self.assertIn("label", loader._transport.about["fields"][1]["Name"])
            with self.assertRaisesRegex(nwt.Error, "1.tar: [12]: no file"):
                list(loader)

    def test_a_cut_shard_is_an_error(self):
        at, png = program.folder(), picture()
        path = shard(at / "1.tar", ("1.png", png))
        path.write_bytes(path.read_bytes()[:1536])
        with self.assertRaisesRegex(nwt.Error, "1.tar: after 1.png: .*end marker"):
            nwt.WebDataset(path, program=program.program())
        with self.assertRaisesRegex(FileNotFoundError, "2.tar"):
            nwt.WebDataset(at / "2.tar", program=program.program())

    def test_a_folder_or_a_pattern_is_no_shard(self):
        for text, shards in (("must be tar files, such as .*train-{000..146}.tar", program.pictures()), (r"write sorted\(glob.glob", "/x/*.tar")):
            with self.assertRaisesRegex(ValueError, text):
                nwt.WebDataset(shards, program=program.program())


class Folders(unittest.TestCase):
    def test_what_is_passed_over_is_told(self):
        at = program.folder()
        for name in ("cat/1.png", "cat/2.avif", "cat/.3.png", "dog/4.png", "stray.png"):
            program.png(at / name, 40, 40, 0)
        (at / "cat" / "5.pgm").write_bytes(b"P5 40 40 255 " + bytes(1600))
        (at / "dog" / "6.ppm").write_bytes(b"P6 40 40 255 " + bytes(4800))
        with self.assertLogs("nwt", "WARNING") as logged, nwt.ImageFolder(at, size=32, program=program.program()) as loader:
            self.assertEqual((len(logged.records), logged.records[0].levelno), (1, logging.WARNING))
            self.assertEqual(logged.records[0].nwt, {"folder": str(at), "files": 3, "extensions": ".avif: 1, .png: 1, hidden: 1"})
            self.assertIn("files were passed over", logged.output[0])
            self.assertEqual([os.path.basename(file) for file in loader.files], ["1.png", "5.pgm", "4.png", "6.ppm"])
            self.assertEqual(indices(loader), [0, 1, 2, 3])

    def test_splits_that_are_taken_for_classes_are_told(self):
        at = program.folder()
        for split in ("train", "val"):
            shutil.copytree(program.pictures(), at / split)
        with self.assertLogs("nwt", "WARNING") as logged, nwt.ImageFolder(at, size=32, program=program.program()):
            self.assertIn("the classes are called like splits", logged.output[0])
        with self.assertNoLogs("nwt", "WARNING"), nwt.ImageFolder(at / "train", size=32, program=program.program()):
            pass

    @unittest.skipUnless(os.name == "posix" and os.geteuid(), "root may read everything")
    def test_a_folder_that_may_not_be_read_is_a_permission_error(self):
        at = program.folder()
        at.chmod(0)
        with self.assertRaises(PermissionError):
            nwt.ImageFolder(at, program=program.program())


class Replaced(unittest.TestCase):
    def test_a_state_isnt_taken_after_a_file_was_replaced(self):
        at = program.folder()
        for i in range(4):
            program.png(at / "cat" / f"{i}.png", 40, 40, i)
        np.arange(400, dtype=np.uint16).tofile(at / "1.bin")
        shard(at / "1.tar", *((f"{i}.png", picture(i)) for i in range(4)))
        pngs = [at / "cat" / f"{i}.png" for i in range(4)]
        for make, file in (
            (lambda **k: nwt.ImageFolder(at, size=32, **k), pngs[0]),
            (lambda **k: nwt.Images(pngs, size=32, **k), pngs[1]),
            (lambda **k: nwt.Files(pngs, **k), pngs[2]),
            (lambda **k: nwt.Tokens(at / "1.bin", length=100, **k), at / "1.bin"),
            (lambda **k: nwt.WebDataset(at / "1.tar", size=32, **k), at / "1.tar"),
        ):
            with self.subTest(file=file), make(batch_size=1, program=program.program()) as loader:
                next(iter(loader))
                state = json.loads(json.dumps(loader.state_dict()))
                self.assertTrue(nwt.State.__required_keys__ < state.keys() <= nwt.State.__annotations__.keys(), state)
                with make(batch_size=1, program=program.program()) as same:
                    same.load_state_dict(state)
                    self.assertEqual(same.state_dict(), state)
                    rest = indices(same)
                    self.assertNotIn(0, rest)
                file.write_bytes(file.read_bytes())
                os.utime(file, (time.time() + 5, time.time() + 5))
                with make(batch_size=1, program=program.program()) as other:
                    with self.assertRaisesRegex(nwt.Error, "^state: files have changed since it was saved.*del state") as changed:
                        other.load_state_dict(state)
                    self.assertEqual(changed.exception.code, "state-data")
                    self.assertEqual(other.state_dict(), {"epoch": 0, "samples": 0})
                    del state["files"]
                    other.load_state_dict(state)
                    self.assertEqual(indices(other), rest)

    def test_a_state_beyond_its_epoch_is_refused(self):
        with nwt.ImageFolder(program.pictures(), size=32, program=program.program()) as loader:
            loader.load_state_dict({"epoch": 0, "samples": 21})
            with self.assertRaisesRegex(nwt.Error, "^state: its samples are more than an epoch has$"):
                next(iter(loader))


class Tokens(unittest.TestCase):
    def test_a_header_of_numpy_is_no_token_whatever_the_name(self):
        at = program.folder()
        with open(at / "train.bin", "wb") as file:
            np.save(file, np.arange(400, dtype=np.uint16))
        with self.assertRaisesRegex(nwt.Error, "must be a file of nothing but tokens, as NumPy's tofile writes it"):
            nwt.Tokens(at / "train.bin", length=10, program=program.program())
        np.arange(400, dtype=np.uint16).tofile(at / "train.npy")
        with nwt.Tokens(at / "train.npy", length=10, program=program.program()) as loader:
            self.assertEqual(next(iter(loader))["tokens"][0].tolist(), list(range(11)))


class Pixels(unittest.TestCase):
    def test_pixels_are_normalized_where_they_are_made(self):
        def first(**kwargs):
            with nwt.ImageFolder(program.pictures(slope=3), batch_size=4, size=32, program=program.program(), **kwargs) as loader:
                return next(iter(loader))["image"]

        whole = first()
        for kwargs, want in (
            ({"dtype": "float32"}, whole / np.float32(255)),
            (
                {"normalize": ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))},
                (whole / 255 - np.array([0.5, 0.4, 0.3])[:, None, None]) / np.array([0.2, 0.3, 0.4])[:, None, None],
            ),
            ({"normalize": True}, (whole / 255 - np.array([0.485, 0.456, 0.406])[:, None, None]) / np.array([0.229, 0.224, 0.225])[:, None, None]),
        ):
            got = first(**kwargs)
            self.assertEqual(got.dtype, np.float32)
            np.testing.assert_allclose(got, want, atol=0.011 if "normalize" in kwargs else 0.0025)  # fractions aren't rounded to levels
        self.assertEqual(first(dtype=np.float16, normalize=True).dtype, np.float16)
        self.assertEqual(first(dtype="bfloat16").dtype, np.uint16)
        for error, text, kwargs in (
            (ValueError, "normalize makes fractions: leave dtype out", {"normalize": True, "dtype": "uint8"}),
            (TypeError, "must be True .ImageNet's. or .mean, std.", {"normalize": 3}),
            (TypeError, "normalize's mean=0.5: must be 3 numbers", {"normalize": (0.5, 0.5)}),
            (ValueError, "dtype='float64': must be one of uint8, float32", {"dtype": "float64"}),
        ):
            with self.subTest(text), self.assertRaisesRegex(error, text):
                first(**kwargs)


if __name__ == "__main__":
    unittest.main()
