"""Writes the files beside it, each by its format's own library.

    pip install numpy==2.4.6 tfrecord==1.14.6 zstandard==0.25.0
    python make.py

The token file follows megatron/core/datasets/indexed_dataset.py of
https://github.com/NVIDIA/Megatron-LM (_IndexWriter), which needs PyTorch to be run.
What _IndexWriter of megatron-core 0.16.1 writes is the same, byte by byte.
"""
import json
import struct

import numpy as np
import tfrecord
import zstandard

# JSON lines, in several Zstandard frames.
for shard in range(2):
    with open(f"stories-{shard}.jsonl.zst", "wb") as f:
        for part in range(2):
            lines = [{"id": 100 * shard + 10 * part + i, "text": f"Shard {shard}, part {part}: " + "größer, " * i + "end."} for i in range(10)]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            f.write(zstandard.ZstdCompressor().compress(text.encode()))

# TFRecords of tf.train.Example.
for shard in range(2):
    w = tfrecord.TFRecordWriter(f"pixels-{shard}.tfrecord")
    for i in range(10):
        n = 10 * shard + i
        w.write({
            "image": (bytes(range(n, n + 12)), "byte"),
            "label": (-n, "int"),
            "box": ([n + 0.5, n + 1.5, n + 2.5, n + 3.5], "float"),
        })
    w.close()

# Tokens: documents of 1 … 40 tokens.
tokens, lengths = [], []
for d in range(40):
    tokens += [1000 * d + i for i in range(d + 1)]
    lengths.append(d + 1)
np.array(tokens, dtype=np.uint16).tofile("corpus.bin")
with open("corpus.idx", "wb") as f:
    f.write(b"MMIDIDX\x00\x00")
    f.write(struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1))  # version; 8 is uint16
    f.write(np.array(lengths, dtype=np.int32).tobytes())
    f.write((2 * np.array([0] + list(np.cumsum(lengths))[:-1], dtype=np.int64)).tobytes())  # pointers, in bytes
    f.write(np.arange(len(lengths) + 1, dtype=np.int64).tobytes())  # documents
