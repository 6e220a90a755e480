"""A processor of your own: how many words have one letter, two letters, three letters...?"""

import argparse
from collections import Counter
from pathlib import Path

from jetlet import Pipeline, sinks, sources
from jetlet.core import Processor, traverse

BOOK = Path(__file__).parent / "data" / "books" / "alice-in-wonderland.txt"


class CountByLength(Processor):
    def init(self, outbox, context):
        super().init(outbox, context)
        self.counts = Counter()
        self.results = None

    def process(self, ordinal, inbox):
        self.counts.update(len(word) for word in inbox)

    def complete(self):
        if self.results is None:
            self.results = traverse(self.counts.items())
        return self.emit_from_traverser(self.results)  # False while the outbox is full


p = Pipeline("word-lengths")
(
    p.read_from(sources.text(BOOK))
    .flat_map(lambda line: line.split())
    .rebalance(len)  # words of one length to one processor
    .custom_transform(CountByLength)
    .sort()
    .write_to(sinks.logger(formatter=lambda entry: "{:3} letters: {:6,} words".format(*entry)))
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--on", choices=("spark", "embedded"), default="spark")
    p.run(on=parser.parse_args().on)
