"""Read handwritten digits with a model, 64 images at a time.

The example trains a small classifier on half of scikit-learn's images of digits and saves it. The
pipeline loads it where the data is, once per process, asks it for lists of images, and says how
many of each digit it has read correctly. The model is replaced while the job runs if a new one has
been saved: `reload` loads the file again.
"""

import argparse
import pickle
from pathlib import Path

from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from jetlet import Pipeline, agg, shared_service, sinks, sources

MODEL = Path("out/inference/digits.pickle").absolute()


def train() -> list:
    """Save a model that has seen half of the images; returns the other half, with the answers."""
    digits = load_digits()
    images, answers = digits.data / 16, digits.target.tolist()
    model = LogisticRegression(max_iter=500).fit(images[::2], answers[::2])
    MODEL.parent.mkdir(parents=True, exist_ok=True)
    MODEL.write_bytes(pickle.dumps(model))
    return list(zip(images[1::2].tolist(), answers[1::2], strict=True))


def load_model(context):
    return pickle.loads(MODEL.read_bytes())


def read_digits(model, examples):
    guesses = model.predict([image for image, _ in examples]).tolist()
    return [(answer, guess) for (_, answer), guess in zip(examples, guesses, strict=True)]


def pipeline() -> Pipeline:
    p = Pipeline("inference")
    (
        p.read_from(sources.items(train()))
        .map_batched(
            read_digits,
            max_batch=64,
            max_wait=0.02,
            service=shared_service(load_model, reload="10m"),
        )
        .grouping_key(lambda pair: pair[0])
        .aggregate(agg.averaging(lambda pair: pair[0] == pair[1]))
        .sort()
        .write_to(
            sinks.logger(formatter=lambda entry: f"{entry[0]}: {entry[1]:.0%} read correctly")
        )
    )
    return p


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--on", choices=("spark", "embedded"), default="spark")
    pipeline().run(on=parser.parse_args().on)
