"""Speed and classification accuracy of GIST descriptors on CIFAR-10.

Accuracy of a 20-nearest-neighbour classifier (20,000 training and 2,000 test images) and of an RBF
SVM (200 training and 100 test images per class, three draws), on standardised descriptors, in
percent. CPU time is the sum over all threads and hardly depends on the load of the machine.

DIR contains the official binary version: DIR/cifar-10-batches-bin/data_batch_1.bin etc.

    python benchmarks/gist.py --cifar DIR --json benchmarks/results/gist.json
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from antipodal.datasets import cifar10
from antipodal.features import gist
from antipodal.threads import usable_cores

N_NEIGHBOURS, N_TRAINING, N_TEST = 20, 20_000, 2_000
N_TRAINING_A_CLASS, N_QUERIES_A_CLASS, SEEDS = 200, 100, (0, 1, 2)


def accuracy(classifier, X, y, training, test):
    """Return the accuracy on the test images in percent."""
    model = make_pipeline(StandardScaler(), classifier).fit(X[training], y[training])
    return round(100 * float(model.score(X[test], y[test])), 2)


def neighbours_accuracy(X, y):
    order = np.random.default_rng(0).permutation(len(X))[: N_TRAINING + N_TEST]
    classifier = KNeighborsClassifier(N_NEIGHBOURS, algorithm="brute")
    return accuracy(classifier, X, y, order[:N_TRAINING], order[N_TRAINING:])


def svm_accuracy(X, y, seed):
    rng = np.random.default_rng(seed)
    drawn = [rng.permutation(np.flatnonzero(y == label)) for label in np.unique(y)]
    last = N_TRAINING_A_CLASS + N_QUERIES_A_CLASS
    training = np.concatenate([images[:N_TRAINING_A_CLASS] for images in drawn])
    queries = np.concatenate([images[N_TRAINING_A_CLASS:last] for images in drawn])
    return accuracy(SVC(C=5), X, y, training, queries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar", type=Path, required=True, metavar="DIR")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    data = cifar10(options.cifar)
    images, labels = data.images, data.labels
    gist(images[:500])  # builds the filters, which are cached
    began, used = time.perf_counter(), time.process_time()
    X = gist(images)
    seconds, processor_seconds = time.perf_counter() - began, time.process_time() - used
    print(f"{len(X)} images in {seconds:.1f} s", flush=True)
    svm = [svm_accuracy(X, labels, seed) for seed in SEEDS]
    record = {
        "images": len(X),
        "dimensions": X.shape[1],
        "threads": usable_cores(),
        "seconds": round(seconds, 2),
        "processor_seconds": round(processor_seconds, 2),
        "neighbours_accuracy": neighbours_accuracy(X, labels),
        "svm_accuracy": svm,
        "svm_accuracy_mean": round(float(np.mean(svm)), 2),
    }
    print(json.dumps(record, indent=2))
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
