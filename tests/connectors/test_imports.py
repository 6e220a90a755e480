from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from jetlet import sinks, sources
sources.text("x.txt"), sources.csv("x.csv"), sources.parquet("x.parquet")
sinks.csv("out"), sinks.parquet("out"), sinks.json_lines("out", compression="zstd")
sources.kafka("t", "host:9092"), sinks.kafka("t", "host:9092")
sources.redis_stream("s", "redis://host"), sinks.redis_stream("s", "redis://host")
sinks.sql("postgresql://host/database", "t")
heavy = {"pyarrow", "fsspec", "zstandard", "numpy", "pandas", "confluent_kafka", "redis"}
heavy |= {"sqlalchemy", "psycopg"}
print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
"""


def test_naming_a_connector_imports_no_client():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_reading_a_local_file_does_not_import_fsspec(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("x\n")
    code = f"""
import sys
from jetlet import sources
source = sources.text({str(path)!r})
assert [b for s in source.splits(1) for b in source.read(s)] == [["x"]]
print("fsspec" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
