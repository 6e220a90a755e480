"""Count the words of three books, and show the ten most frequent ones.

python examples/word_count.py                  on Spark, on this machine
python examples/word_count.py --on embedded    in this process, without Spark
"""

import argparse
import re
from pathlib import Path

from jetlet import Pipeline, agg, entry_value, sinks, sources, whole_item

BOOKS = Path(__file__).parent / "data" / "books" / "*.txt"


def show(top):
    """Print the most frequent words; it is called where the pipeline was submitted."""
    print("The most frequent words:")
    most = top[0][1]
    for rank, (word, count) in enumerate(top, start=1):
        print(f"{rank:4}  {word:<8} {count:6,}  {'█' * round(40 * count / most)}")


p = Pipeline("word-count")
counts = (
    p.read_from(sources.text(BOOKS))
    .flat_map(lambda line: re.split(r"\W+", line.lower()))
    .filter(bool)
    .grouping_key(whole_item)
    .aggregate(agg.counting())
)
counts.aggregate(agg.top_n(10, entry_value)).write_to(sinks.client(show))

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--on", choices=("spark", "embedded"), default="spark")
    p.run(on=parser.parse_args().on)
