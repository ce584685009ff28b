"""Small data files for the tests."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq


def jsonl(path, rows, **how):
    text = "".join(json.dumps(row, **how) + "\n" for row in rows)
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def parquet(path, rows, group=1000, **how):
    columns = dict.fromkeys(column for row in rows for column in row)
    filled = [{column: row.get(column) for column in columns} for row in rows]
    pq.write_table(pa.Table.from_pylist(filled, **how), path, row_group_size=group)
    return path


def sums(count, start=0):
    """Problems that differ in every way that counts; the answer is their number."""
    return [{"problem": f"What is {k} and nothing more?", "answer": k} for k in range(start, start + count)]
