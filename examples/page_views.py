"""Count page views in tasks, each with a store of its own that survives a restart.

There is a task for each of four partitions; a page is always in the same one. Every tenth of a
second a task sends the counts that have changed, and in the end it prints its busiest pages. Run it
twice: the second time it finds that everything is counted already, and prints the same.
"""

import argparse
import gzip
import re
from pathlib import Path

from jetlet.tasks import (
    ClosableTask,
    EndOfStreamTask,
    InitableTask,
    StreamTask,
    TaskApplication,
    TaskConfig,
    WindowableTask,
    checkpoints,
    stores,
    systems,
)

LOG = Path(__file__).parent / "data" / "access.log.gz"
PAGE = re.compile(r'"GET ([^ ?]+)\S* HTTP/[\d.]+" 200 ')


class PageViews(StreamTask, InitableTask, WindowableTask, EndOfStreamTask, ClosableTask):
    def init(self, context):
        self.counts = context.store("counts")
        self.changed = set()

    def process(self, envelope, collector, coordinator):
        page = envelope.message
        self.counts.put(page, self.counts.get(page, 0) + 1)
        self.changed.add(page)

    def window(self, collector, coordinator):
        for page in sorted(self.changed):
            collector.send("memory.counts", (page, self.counts.get(page)), key=page)
        self.changed.clear()

    def end_of_stream(self, collector, coordinator):
        self.window(collector, coordinator)

    def close(self):
        busiest = sorted(self.counts.all(), key=lambda entry: (-entry[1], entry[0]))[:3]
        for page, count in busiest:
            print(f"{count:7,}  {page}")


def page_views():
    """The stream: in a system that lives in this process, so that the example needs no other."""
    memory = systems.in_memory()
    memory.create("page-views", partitions=4)
    with gzip.open(LOG, "rt") as lines:
        for line in lines:
            if found := PAGE.search(line):
                memory.send("page-views", found[1], key=found[1])
    memory.end("page-views")
    return memory


memory = page_views()
app = TaskApplication(
    "page-views",
    PageViews,
    systems={"memory": memory},
    inputs=["memory.page-views"],
    outputs=["memory.counts"],
    stores={"counts": stores.sqlite("out/page-views/state", key=str, value=int)},
    checkpoints=checkpoints.in_directory("out/page-views/checkpoints"),
    config=TaskConfig(window_interval=0.1, commit_interval=1.0),
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--on", choices=("embedded",), default="embedded")
    parser.parse_args()
    app.run(on="embedded")
