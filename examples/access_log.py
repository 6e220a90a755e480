"""Find the busiest pages in a web server's log; lines that are damaged are put aside.

The pages are printed. The damaged lines go to out/access-log/damaged, each with the reason.
"""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from jetlet import Pipeline, agg, sinks, sources

LOG = Path(__file__).parent / "data" / "access.log.gz"
LINE = re.compile(
    r'(?P<host>\S+) \S+ \S+ \[(?P<time>[^]]+)\] "[A-Z]+ (?P<path>\S+) HTTP/[\d.]+" '
    r"(?P<status>\d{3}) (?P<size>\d+|-)"
)


@dataclass(frozen=True)
class Request:
    host: str
    path: str
    status: int
    size: int


def parse(line):
    found = LINE.match(line)
    if found is None:
        raise ValueError("not a line of an access log")
    size = 0 if found["size"] == "-" else int(found["size"])
    return Request(found["host"], found["path"].partition("?")[0], int(found["status"]), size)


def show(pages):
    print(f"{'requests':>8} {'visitors':>8} {'MB':>6}  page")
    for path, (requests, hosts, size) in pages:
        print(f"{requests:8,} {len(hosts):8,} {size / 1e6:6.1f}  {path}")


p = Pipeline("access-log")
requests = p.read_from(sources.text(LOG)).map(
    parse, on_error=sinks.json_lines("out/access-log/damaged")
)
pages = (
    requests.filter(lambda request: request.status < 400)
    .grouping_key(lambda request: request.path)
    .aggregate(
        agg.all_of(
            agg.counting(),
            agg.to_set(lambda request: request.host),
            agg.summing(lambda request: request.size),
        )
    )
)
# Of pages with as many requests, the one with the later name: so it is the same in every run.
busiest = pages.aggregate(agg.top_n(10, lambda page: (page[1][0], page[0])))
busiest.write_to(sinks.client(show))

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--on", choices=("spark", "embedded"), default="spark")
    p.run(on=parser.parse_args().on)
