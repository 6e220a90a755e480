"""Count requests and errors per hour in an access log that Spark reads as a stream of files.

The log comes as several files, one per micro-batch. What is counted is written to
out/spark_stream, exactly once, whenever and however the program is killed and started again.
"""

import argparse
import gzip
import os
import re
from datetime import UTC, datetime
from pathlib import Path

from jetlet import JobConfig, Pipeline, agg, sinks, sources, windows

LOG = Path(__file__).parent / "data" / "access.log.gz"
INBOX = Path("out/spark_stream/in")
REQUEST = re.compile(r'\[([^]]+)\] "[A-Z]+ [^"]*" (\d{3}) ')
LINES_PER_FILE = 5000
HOUR = 3_600_000
LAG = 60_000


def fill_inbox():
    """Stands for whoever writes the files that are to be read."""
    INBOX.mkdir(parents=True, exist_ok=True)
    with gzip.open(LOG, "rt") as log:
        lines = log.readlines()
    for number, first in enumerate(range(0, len(lines), LINES_PER_FILE)):
        file = INBOX / f"access-{number}.log"
        file.write_text("".join(lines[first : first + LINES_PER_FILE]))
        os.utime(file, (number, number))  # Spark begins with the oldest


def read_log(spark):
    fill_inbox()
    return spark.readStream.option("maxFilesPerTrigger", 1).text(str(INBOX.absolute()))


def parse(line):
    """Time in ms and status of a request; nothing if it is none."""
    found = REQUEST.search(line["value"])
    if found is None:
        return []
    time = datetime.strptime(found[1], "%d/%b/%Y:%H:%M:%S %z")
    return [(int(time.timestamp() * 1000), int(found[2]))]


def row(window):
    requests, errors = window.result
    hour = datetime.fromtimestamp(window.start / 1000, UTC)
    return {"hour": hour.hour, "requests": requests, "errors": errors}


def shown(row):
    return f"{row['hour']:2} h {row['requests']:6,} requests, {row['errors']} errors"


p = Pipeline("requests-per-hour")
per_hour = (
    p.read_from(sources.spark_stream(read_log, available_now=True))
    .without_timestamps()
    .flat_map(parse)
    .add_timestamps(lambda request: request[0], LAG)
    .window(windows.tumbling(HOUR))
    .aggregate(agg.all_of(agg.counting(), agg.summing(lambda request: request[1] >= 500)))
    .map(row)
)
per_hour.write_to(sinks.csv("out/spark_stream/per-hour", mode="append"))
per_hour.filter(lambda row: row["errors"] > 10).write_to(sinks.logger(formatter=shown))

CONFIG = JobConfig(processing_guarantee="exactly-once", snapshot_dir="out/spark_stream/state")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--on", choices=("spark",), default="spark")
    parser.parse_args()
    p.run(on="spark", config=CONFIG)
