"""Writes table.parquet beside it: pip install pyarrow==26.0.1; python make.py"""
import pyarrow as pa
import pyarrow.parquet as pq

n = 60
table = pa.table({
    "label": pa.array([-i for i in range(n)], pa.int64()),
    "x": pa.array([[i + 0.25 * k for k in range(i % 5)] for i in range(n)], pa.list_(pa.float32())),
    "text": pa.array([f"row {i} größer" for i in range(n)], pa.string()),
})
pq.write_table(table, "table.parquet", row_group_size=7, compression="zstd")
