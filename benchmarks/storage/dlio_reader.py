"""DLIO's readers for PyTorch, as plugins (reader.reader_classname): they read as those of MLPerf Storage's version 3 do."""

import json
import os

from dlio_benchmark.reader.image_reader import ImageReader
from dlio_benchmark.reader.reader_handler import FormatReader


class Decoded(ImageReader):
    def read_index(self, global_sample_idx, step):
        # FormatReader's formats the map of all samples into a debug message that nobody sees, for each sample.
        self.open(self.global_index_map[global_sample_idx][0])
        return self._args.resized_image

    def __init__(self, dataset_type, thread_index, epoch):
        super().__init__(dataset_type, thread_index, epoch)
        index = os.path.join(self._args.data_folder, "..", "rowgroups.json")
        self.groups = json.load(open(index)) if os.path.exists(index) else [[0, -1]]

    def next(self):
        yield from super().next()

    def is_index_based(self):
        return True

    def is_iterator_based(self):
        return True


class Counted(Decoded):
    """Reads the bytes of a file or, of a Parquet file, of a row group, and drops them."""

    def read_index(self, global_sample_idx, step):
        filename, k = self.global_index_map[global_sample_idx]
        offset, size = self.groups[k]
        with open(filename, "rb") as file:
            file.seek(offset)
            file.read(size)
        return self._args.resized_image
