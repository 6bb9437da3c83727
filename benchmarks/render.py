"""Write docs/reference/cli.md and the tables of the documentation from the recorded runs.

python benchmarks/render.py            # or: make results
python benchmarks/render.py --check    # fail if a page differs from the records
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev

import guide_tables
import typer
from hundred_million import table as scale_table
from recall_speed import table as recall_speed_table
from typer.cli import get_docs_for_click
from typer.main import get_command

from antipodal.bench.records import Record, read_records
from antipodal.bench.tables import PUBLISHED, published_scores, spread
from antipodal.cli import app
from antipodal.hashers.registry import current_method

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in (
            "guide/audit",
            "guide/integrations",
            "guide/supervised",
            "guide/reliability",
            "guide/scaling",
            "guide/search",
            "research/method",
            "research/results",
            "research/results-appendix",
            "research/reproducing",
            "research/unlabelled",
        )
    ),
]


def markdown(rows: list[list[str]]) -> str:
    """Format headings and rows as a Markdown table with right-aligned numbers."""
    headings, *body = rows
    rule = ["---", *["--:"] * (len(headings) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (headings, rule, *body))


# The order of the rows: methods that use labels, upper bounds, methods without labels.
ORDER = [
    "DeepLinf", "NNHash", "SparseHash", "OrthoHash", "CSQ", "KSH", "SDH", "PSH", "LDAHash", "BRE",
    "OneHotHash", "ClassifierLSH", "Ceiling", "Cosine", "CentredCosine", "AGH", "AGH1", "AGH2",
    "LinfHash", "ITQ", "SpectralHash", "LSH", "SignHash",
]  # fmt: skip


UNCOMPRESSED = {
    "Ceiling": "upper bound: uncompressed classifier probabilities",
    "Cosine": "uncompressed vectors, cosine",
    "CentredCosine": "mean-centred vectors, cosine",
}


def place(method: str) -> tuple[int, str]:
    """Return the sort key of a method: its row in ORDER, then its settings."""
    name, _, settings = method.replace(".", ":", 1).partition(":")
    return ORDER.index(name), settings


def records(name: str) -> list[Record]:
    """Read a file of records in the order of the tables."""
    # If a cell was measured again, by another version or with other defaults, the last one counts.
    last = {(r["method"], r["bits"], r["seed"]): r for r in read_records(RESULTS / f"{name}.jsonl")}
    return sorted(last.values(), key=lambda r: (*place(r["method"]), r["bits"], r["seed"]))


def named(method: str) -> str:
    """Return the label of a method: as `bench --methods` takes it, uncompressed ones in words."""
    if method in UNCOMPRESSED:
        return UNCOMPRESSED[method]
    name, *settings = current_method(method).split(":")
    if settings and "=" not in settings[0]:  # module:Class
        name, *settings = settings
    return f"`{':'.join([name, *settings])}`"


def compact(values: list[float]) -> str:
    """Format mean±standard deviation without spaces, for wide tables."""
    return spread(values).replace(" ± ", "±")


def by_length(runs: list[Record], *, new_items: bool = False) -> str:
    """Return one row per method with our mAP and the paper's for each code length."""
    lengths = sorted({r["bits"] for r in runs} - {0})
    headings = ["method", *(f"mAP, {b} bits{who}" for b in lengths for who in ("", ", paper"))]
    rows = [[*headings, f"{lengths[-1]} bits, without training rows"] if new_items else headings]
    for method in dict.fromkeys(r["method"] for r in runs):
        cells = []
        for bits in lengths:
            mine = [r for r in runs if r["method"] == method and r["bits"] in (bits, 0)]
            if not mine:
                cells += ["–", ""]
                continue
            paper = published_scores(mine[0]).get("map")
            cells += [spread([r["map"] for r in mine]), "" if paper is None else f"{paper:.2f}"]
        if new_items:
            cells.append(spread([r["map_without_training"] for r in mine]))
        rows.append([named(method), *cells])
    return markdown(rows)


# The ten data sets on which codes of 64 bits are compared, and their records.
DATA_SETS = {
    "CIFAR-10 GIST": "cifar10",
    "CIFAR-10 GIST, mirrored": "cifar10-mirrored",
    "Fashion-MNIST": "fashion-mnist",
    "MNIST": "mnist",
    "digits": "digits",
    "CLINC150": "clinc150",
    "banking77": "banking77",
    "COCO": "coco_bow500",
    "COCO, top concept omitted": "coco_bow500-without-top-1",
    "Corel16k": "corel16k",
}
MULTI_LABEL = list(DATA_SETS)[-3:]


def against_the_best() -> str:
    """Return one row per data set: DeepLinf, the best other code, and their paired difference."""
    rows = [["64 bits", "splits", "`DeepLinf`", "best other code", "its mAP", "difference",
             "without training rows: `DeepLinf`", "best other code", "difference"]]  # fmt: skip
    for title, name in DATA_SETS.items():
        runs = [r for r in records(name) if r["bits"] == 64]
        splits = [r["seed"] for r in runs if r["method"] == "DeepLinf"]
        cells = [title, str(len(splits))]
        for score in ("map", "map_without_training"):
            of = {(r["method"], r["seed"]): r[score] for r in runs}
            others = {m for m, _ in of if not m.startswith("DeepLinf")}
            others = {m for m in others if all((m, seed) in of for seed in splits)}
            best = max(others, key=lambda m: mean(of[m, seed] for seed in splits))
            ours = [of["DeepLinf", seed] for seed in splits]
            theirs = [of[best, seed] for seed in splits]
            gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
            error = stdev(gaps) / math.sqrt(len(gaps))
            cells += [spread(ours), named(best)]
            cells += [spread(theirs)] if score == "map" else []
            cells.append(f"{mean(gaps):+.2f} ± {error:.2f}")
        rows.append(cells)
    return markdown(rows)


def against_vectors() -> str:
    """Return one row per ranking, uncompressed or by codes, and one column per data set."""
    sets = {
        "banking77": "banking77", "CLINC150": "clinc150", "CIFAR-10, CNN features": "cifar_effnet"
    }  # fmt: skip
    labels = UNCOMPRESSED | {
        "ITQ": "64 bits without labels, `ITQ`",
        "DeepLinf": "**64 bits with labels, `DeepLinf`**",
    }
    runs = {title: records(name) for title, name in sets.items()}
    rows = [["mAP", *sets]]
    for method in ("Cosine", "CentredCosine", "ITQ", "DeepLinf", "Ceiling"):
        scores = [[r["map"] for r in runs[t] if r["method"] == method] for t in sets]
        rows.append([labels[method], *map(spread, scores)])
    return markdown(rows)


ALL_SETS = {
    **DATA_SETS,
    "CIFAR-10 GIST, unseen classes": "cifar10-unseen",
    "CIFAR-10 CNN features": "cifar_effnet",
}


def matrix(cell: Callable[[list[Record]], str]) -> str:
    """Return one row per method and one column per data set, at 64 bits."""
    runs = {
        title: [r for r in records(name) if r["bits"] in (64, 0)]
        for title, name in ALL_SETS.items()
    }
    found = {r["method"] for rows in runs.values() for r in rows}
    rows = [["64 bits", *runs]]
    for method in sorted(found, key=place):
        cells = []
        for of_set in runs.values():
            mine = [r for r in of_set if r["method"] == method]
            cells.append(cell(mine) if mine else "–")
        if set(cells) != {"–"}:
            rows.append([named(method).removesuffix(": uncompressed classifier probabilities"),
                         *cells])  # fmt: skip
    return markdown(rows)


def precision_recall(runs: list[Record]) -> str:
    """Format mean precision and recall within radius 2."""
    if "precision_r2" not in runs[0]:
        return "–"
    return "/".join(spread([mean(r[key] for r in runs)]) for key in ("precision_r2", "recall_r2"))


def radius(runs: list[Record]) -> str:
    """Return precision and recall at radius 2 and 0 of the methods of the paper, and its own."""
    keys = {
        "precision_r2": "P r≤2", "recall_r2": "R r≤2", "precision_r0": "P r=0",
        "recall_r0": "R r=0", "empty_r2": "empty r≤2",
    }  # fmt: skip
    rows = [["method", "bits", *keys.values()]]
    for method, bits in dict.fromkeys((r["method"], r["bits"]) for r in runs if r["bits"]):
        mine = [r for r in runs if (r["method"], r["bits"]) == (method, bits)]
        paper = published_scores(mine[0])
        if not paper and not method.startswith(("DeepLinf", "ClassifierLSH")):
            continue  # the others are in the table of all data sets
        cells = [
            compact([r[key] for r in mine]) + (f" ({paper[key]:g})" if key in paper else "")
            for key in keys
        ]
        rows.append([named(method), str(bits), *cells])
    return markdown(rows)


def lookup() -> str:
    """Return the settings for radius search with the paper's scores, at 64 bits."""
    keys = {"map": "mAP", "precision_r2": "P r≤2", "recall_r2": "R r≤2", "precision_r0": "P r=0",
            "recall_r0": "R r=0"}  # fmt: skip
    rows = [["64 bits", *keys.values()]]
    paper: Record = {}
    for label, name in (("", "cifar10"), (", mirror images", "cifar10-mirrored")):
        runs = [r for r in records(name) if (r["method"], r["bits"]) == ("DeepLinf.lookup", 64)]
        paper = paper or dict(published_scores(runs[0]))
        rows.append([f"`DeepLinf.lookup`{label}", *(spread([r[k] for r in runs]) for k in keys)])
    rows.append(["paper", *(f"{paper[key]:.1f}" for key in keys)])
    return markdown(rows)


def trade_off(runs: list[Record]) -> str:
    """Return one row per weight of similar pairs."""
    keys = ("map", "precision_r2", "recall_r2", "precision_r0", "recall_r0", "empty_r2")
    rows = [["`similar_weight`", "mAP", "P r≤2", "R r≤2", "P r=0", "R r=0", "empty r≤2"]]
    for method in dict.fromkeys(r["method"] for r in runs):
        mine = [r for r in runs if r["method"] == method]
        scores = (compact([r[key] for r in mine]) for key in keys)
        rows.append([method.partition("=")[2], *scores])
    return markdown(rows)


def multi_label() -> str:
    """Return mAP@10 and MP@5000 at 64 bits and mAP at 256 bits for the multi-label data sets."""
    keys = {
        "mAP@10": (64, "map_at_10"),
        "MP@5000": (64, "mp_at_5000"),
        "mAP, 256 bits": (256, "map"),
    }
    runs = {title: records(DATA_SETS[title]) for title in MULTI_LABEL}
    rows = [["method", *(f"{title}: {key}" for title in runs for key in keys)]]
    for method in sorted({r["method"] for some in runs.values() for r in some}, key=place):
        cells = [
            compact([r[key] for r in some if (r["method"], r["bits"]) == (method, bits)])
            for some in runs.values()
            for bits, key in keys.values()
        ]
        if set(cells) != {"–"}:
            rows.append([named(method), *cells])
    return markdown(rows)


def encoding_speed(runs: list[Record]) -> float:
    """Return the mean number of rows encoded per second."""
    return mean((r["queries"] + r["database"]) / r["encode_seconds"] for r in runs)


def bit_statistics(runs: list[Record]) -> str:
    """Return bit statistics and costs at 64 bits, one row per method."""
    rows = [
        ["64 bits", "balance", "correlation", "distinct codes", "quantisation error",
         "fit, s", "rows encoded per second", "peak memory, MB"]
    ]  # fmt: skip
    for method in dict.fromkeys(r["method"] for r in runs if r["bits"] == 64):
        mine = [r for r in runs if (r["method"], r["bits"]) == (method, 64)]

        def average(name: str, mine: list[Record] = mine) -> float:
            return mean(r[name] for r in mine)

        rows.append(
            [named(method), f"{average('bit_balance'):.1f}",
             f"{average('bit_correlation'):.1f}", f"{average('distinct_codes'):,.0f}",
             f"{average('quantisation_error'):.0f}", f"{average('fit_seconds'):.1f}",
             f"{round(encoding_speed(mine), -3):,.0f}", f"{max(r['peak_mb'] for r in mine):,}"]
        )  # fmt: skip
    return markdown(rows)


def ablations(runs: list[Record]) -> str:
    """Return one row per change in the order of the runs: scores and the change of mAP."""
    keys = ("precision_r2", "recall_r2", "precision_r0", "quantisation_error")
    rows = [["change", "seeds", "mAP", "difference", *("P r≤2", "R r≤2", "P r=0"),
             "quantisation error"]]  # fmt: skip
    usual = unchanged(runs, "DeepLinf")
    last: dict[str, dict[int, Record]] = {}
    for r in runs:
        last.setdefault(r["method"], {})[r["seed"]] = r
    for method, of_seed in last.items():
        mine = [*of_seed.values()]
        name, *settings = current_method(method).split(":")
        changes = [r["map"] - usual[r["data"], r["seed"]] for r in mine]
        label = ", ".join([*(["`DeepLinf.paper`"] if name == "DeepLinf.paper" else []),
                           *(f"`{setting}`" for setting in settings)])  # fmt: skip
        rows.append(
            [label or "none (default)", str(len(mine)), compact([r["map"] for r in mine]),
             f"{mean(changes):+.1f}{standard_error(changes)}" if label else "",
             *(compact([r[key] for r in mine]) for key in keys)]
        )  # fmt: skip
    return markdown(rows)


def unchanged(runs: list[Record], method: str) -> dict[tuple[str, int], float]:
    """Return the mAP of a method by data and seed, to pair its changes with.

    GIST features differ in their last digits between machines, which changes the training. A pair
    of runs therefore has the same digest of the data.
    """
    return {(r["data"], r["seed"]): r["map"] for r in runs if r["method"] == method}


def choices(runs: list[Record]) -> str:
    """Return one row per setting and one column per data set."""
    sets = list(dict.fromkeys(r["data"] for r in runs))
    rows = [["setting", *sets]]
    for method in dict.fromkeys(r["method"] for r in runs):
        found = {r["data"]: f"{r['map']:.1f}±{r['map_sd']:.1f}" for r in runs
                 if r["method"] == method}  # fmt: skip
        rows.append([named(method), *(found.get(name, "–") for name in sets)])
    return markdown(rows)


# The methods of the paper's Table 2: its name and ours.
TABLE_2 = {
    "KSH": "KSH", "AGH1": "AGH1", "AGH2": "AGH2", "PSH": "PSH", "LH": "LDAHash",
    "NNH": "NNHash", "SNNH": "SparseHash", "deep l∞": "DeepLinf",
}  # fmt: skip


def regime() -> list[Record]:
    """Return the runs of the paper's regime; the last one of a cell that was measured again."""
    runs = read_records(RESULTS / "paper-regime.jsonl")
    last = {(r["method"], r["bits"], r["seed"]): r for r in runs}
    return sorted(last.values(), key=lambda r: r["seed"])


def standard_error(gaps: list[float]) -> str:
    """Format the standard error of a mean difference; nothing for a single difference."""
    if len(gaps) < 2:
        return ""
    error = stdev(gaps) / math.sqrt(len(gaps))
    return f" ± {error:.1f}" if error >= 0.05 else f" ± {error:.2f}"


def against_the_paper() -> str:
    """Return the paper's Table 2 next to our scores in its regime and with our defaults."""
    keys = {"map": "mAP", "precision_r2": "P r≤2", "recall_r2": "R r≤2"}
    columns = [f"{k}, {who}" for k in keys.values() for who in ("paper", "ours", "our best")]
    rows = [["method", "bits", "seeds", *columns]]
    best, trained_alike = records("cifar10"), regime()
    for name, method in TABLE_2.items():
        for bits in (48, 64):
            usual = [r for r in best if (r["method"], r["bits"]) == (method, bits)]
            trained = (f"{method}.reproduced", bits)
            ours = [r for r in trained_alike if (r["method"], r["bits"]) == trained]
            is_network = method in ("NNHash", "SparseHash", "DeepLinf")
            paper = published_scores(usual[0])
            shown = ours if is_network else usual
            cells = [str(len(shown))]
            for key in keys:
                mine = [r[key] for r in shown]
                cells += [f"{paper[key]:.2f}" if paper[key] >= 0.01 else f"{paper[key]:g}"]
                cells += [spread(mine), spread([r[key] for r in usual]) if is_network else ""]
            rows.append([name, str(bits), *cells])
    return markdown(rows)


def networks_of_the_paper() -> str:
    """Return the mAP of the three networks: the paper's, ours in its regime, our defaults."""
    rows = [
        ["mAP", *(f"{b} bits, {who}" for b in (48, 64) for who in ("paper", "ours", "default"))]
    ]
    trained_alike, usual = regime(), records("cifar10")
    for name, method in list(TABLE_2.items())[:-4:-1]:
        cells = []
        for bits in (48, 64):
            of = {
                m: [r for r in runs if (r["method"], r["bits"]) == (m, bits)]
                for m, runs in ((f"{method}.reproduced", trained_alike), (method, usual))
            }
            cells.append(f"{published_scores(of[method][0])['map']:.2f}")
            cells += [spread([r["map"] for r in found]) for found in of.values()]
        rows.append([f"{name}, `{method}`", *cells])
    return markdown(rows)


def paired_differences() -> str:
    """Return the mAP of `DeepLinf.reproduced` minus that of its rivals, paired by seed."""
    runs = {(r["method"], r["bits"], r["seed"]): r["map"] for r in regime()}
    table = PUBLISHED["cifar10-gist"]
    rows = [["deep l∞ minus", "bits", "seeds", "difference of mAP", "smallest", "paper"]]
    for name, method in {
        "NNH": "NNHash.reproduced",
        "SNNH": "SparseHash.reproduced",
        "itself without stages, K = 0": "DeepLinf.reproduced:n_stages=0",
    }.items():
        for bits in (48, 64):
            pairs = [
                (runs["DeepLinf.reproduced", b, seed], runs[m, b, seed])
                for m, b, seed in runs
                if (m, b) == (method, bits) and ("DeepLinf.reproduced", b, seed) in runs
            ]
            if not pairs:
                continue
            gaps = [a - b for a, b in pairs]
            paper = ""
            if ":" not in method:
                ours, theirs = (table[m, bits]["map"] for m in ("DeepLinf", method.split(".")[0]))
                paper = f"{ours - theirs:+.2f}"
            rows.append(
                [name, str(bits), str(len(gaps)), f"{mean(gaps):+.1f}{standard_error(gaps)}",
                 f"{min(gaps):+.1f}", paper]
            )  # fmt: skip
    return markdown(rows)


def claims() -> str:
    """Return one row per change of the paper's network at 64 bits, with paired differences."""
    runs: dict[str, dict[int, Record]] = {}
    for r in regime():
        if ":n_epochs=" in r["method"]:  # runs of ablations.py; those of the preset have more
            runs.setdefault(r["method"], {})[r["seed"]] = r
    usual = unchanged(
        read_records(RESULTS / "paper-regime.jsonl"), "DeepLinf.reproduced:n_epochs=250"
    )
    keys = ("precision_r2", "recall_r2", "precision_r0", "recall_r0")
    rows = [["change", "seeds", "mAP", "difference", "P r≤2", "R r≤2", "P r=0", "R r=0",
             "distinct codes"]]  # fmt: skip
    for method, mine in runs.items():
        name, *settings = method.replace(".reproduced", "").replace(":n_epochs=250", "").split(":")
        names = [] if name in ("DeepLinf", "Ablated") else [name]
        label = ", ".join(f"`{part}`" for part in (*names, *settings))
        gaps = [r["map"] - usual[r["data"], r["seed"]] for r in mine.values()]
        rows.append(
            [label or "none", str(len(mine)), compact([r["map"] for r in mine.values()]),
             f"{mean(gaps):+.1f}{standard_error(gaps)}" if label else "",
             *(compact([r[key] for r in mine.values()]) for key in keys),
             f"{mean(r['distinct_codes'] for r in mine.values()):,.0f}"]
        )  # fmt: skip
    return markdown(rows)


def complexity() -> str:
    """Return encode times of the paper's network next to its multiply-adds, nN + KN²."""
    rows = [["N", "K", "multiply-adds per row", "µs per row", "ns per 1,000 multiply-adds",
             "relative to the product Wy"]]  # fmt: skip
    for r in read_records(RESULTS / "complexity.jsonl"):
        cost = r["microseconds"] / r["multiply_adds"] * 1e6
        ratio = r["microseconds"] / r["product_microseconds"]
        rows.append([str(r["bits"]), str(r["stages"]), f"{r['multiply_adds']:,}",
                     f"{r['microseconds']:.1f}", f"{cost:.0f}", f"{ratio:.1f}"])  # fmt: skip
    return markdown(rows)


def labels_only_reduced() -> str:
    """Return mAP and encoding time of reduced sets next to the full kernel, paired by seed."""
    full = {
        r["seed"]: r["map"]
        for r in records("cifar10")
        if (r["method"], r["bits"]) == ("DeepLinf:n_unlabelled=0", 64)
    }
    speed = json.loads((RESULTS / "encode.json").read_text())
    rows = [["`n_reduced`", "seeds", "mAP", "difference", "encoding, relative to X·W",
             "with roots"]]  # fmt: skip
    rows.append(["0 (all anchors)", str(len(full)), spread([*full.values()]), "",
                 f"{speed['kernel_ratio']:.1f}", "–"])  # fmt: skip
    runs = records("labels-only-reduced")
    for method in dict.fromkeys(r["method"] for r in runs):
        mine = [r for r in runs if r["method"] == method]
        n_points = mine[0]["parameters"]["n_reduced"]
        gaps = [r["map"] - full[r["seed"]] for r in mine]
        rows.append([f"{n_points}", str(len(mine)), spread([r["map"] for r in mine]),
                     f"{mean(gaps):+.2f} ± {stdev(gaps) / math.sqrt(len(gaps)):.2f}",
                     *(f"{speed[f'kernel_reduced_to_{n_points}{roots}_ratio']:.1f}"
                       for roots in ("", "_with_roots"))])  # fmt: skip
    return markdown(rows)


def lookup_frontier(*, short: bool) -> str:
    """Return radius search of the paper's network by weight, margin and noise.

    With short=True only settings that no other setting exceeds in both mAP and recall.
    """
    keys = ("map", "precision_r2", "recall_r2", "precision_r0", "recall_r0")
    last: dict[str, dict[int, Record]] = {}
    for r in read_records(RESULTS / "lookup-frontier.jsonl"):
        last.setdefault(r["method"], {})[r["seed"]] = r
    found = {method: [*of_seed.values()] for method, of_seed in last.items()}
    means = {m: [mean(r[key] for r in runs) for key in keys] for m, runs in found.items()}
    rows = [["`similar_weight`", "`margin`", "`noise`", "epochs", "seeds", "mAP", "P r≤2", "R r≤2",
             "P r=0", "R r=0"]]  # fmt: skip
    for method in sorted(found, key=lambda m: -means[m][2]):
        runs = found[method]
        score, _, recall, *_ = means[method]
        if short and any(m[0] > score and m[2] > recall for m in means.values()):
            continue
        options = runs[0]["parameters"]
        cells = (options[k] for k in ("similar_weight", "margin", "noise", "n_epochs"))
        rows.append([*(f"{cell:g}" for cell in cells), str(len(runs)),
                     *(compact([r[key] for r in runs]) for key in keys)])  # fmt: skip
    paper = PUBLISHED["cifar10-gist"]["DeepLinf", 64]
    rows.append(["paper", "5", "–", "–", "–", *(f"{paper[key]:.1f}" for key in keys)])
    return markdown(rows)


def convolutional() -> str:
    """Return the scores of codes of a convolutional network, one row per head."""
    runs = read_records(RESULTS / "convolutional.jsonl")
    keys = ("map", "precision_r2", "recall_r2")
    rows = [["codes", "seeds", "mAP", "P r≤2", "R r≤2", "fit, minutes"]]
    for method in ("l∞ head", "tanh head", "ITQ of its features"):
        mine = [r for r in runs if r["method"] == method]
        label = {"ITQ of its features": "ITQ of the features before the l∞ head"}
        rows.append([label.get(method, method), str(len(mine)),
                     *(spread([r[key] for r in mine]) for key in keys),
                     f"{mean(r['fit_seconds'] for r in mine) / 60:.1f}"])  # fmt: skip
    return markdown(rows)


def variants(preset: str, name: str) -> str:
    """Return the validation scores of a preset of `DeepLinf` with changes, one row per change."""
    rows = [[f"`DeepLinf.{preset}` with", "mAP", "P r≤2", "R r≤2"]]
    for r in read_records(RESULTS / f"{name}.jsonl"):
        changes = ", ".join(f"`{change}`" for change in r["method"].split(":")[1:])
        scores = (r["map"], r["precision_r2"], r["recall_r2"])
        rows.append([changes or "no change", *(f"{score:.1f}" for score in scores)])
    return markdown(rows)


# Labels of the codes in unlabelled.jsonl. The others are classes with their number of bits.
FAISS = {
    "PQ48x8np": "PQ48x8 (Faiss)",
    **{f"RR,RaBitQ{b}": f"RaBitQ, {b or 1} bit{'s' * bool(b)} (Faiss)" for b in ("", "2", "4")},
    **{f"RR,SQtqmse{b}": f"TurboQuant, {b} bit{'s' * (b > '1')} (Faiss)" for b in "124"},
}
SEARCHES = {"Hamming": "Hamming", "real query": "asymmetric", "project": "asymmetric, `project`"}
# The rows of the short table: the codes by their intended search.
INTENDED = {"LinfHash.asymmetric": "real query", "ITQ": "Hamming", "LSH": "Hamming"}


def unlabelled(*, short: bool) -> str:
    """Return recall@10 of codes without labels: the main rows, or with short=False the others."""
    found: dict[tuple[int, str, str], dict[str, Record]] = {}
    for record in read_records(RESULTS / "unlabelled.jsonl"):
        key = (record["bytes"], record["method"], record["search"])
        found.setdefault(key, {})[record["set"]] = record
    sets = ("banking77", "clinc150")
    rows = [["bytes", "code", "search", "banking77", "CLINC150", "rows encoded per second"]]
    for (size, method, way), of_set in sorted(found.items()):
        name, _, bits = method.partition(" ")
        if short != (method in FAISS or INTENDED.get(name) == way):
            continue
        cells = [
            f"{r['recall']:.3f} ({r['recall_low']:.3f}–{r['recall_high']:.3f})"
            for r in (of_set[name] for name in sets)
        ]
        speed = f"{of_set[sets[0]]['vectors_per_second']:,}"
        label = FAISS.get(method, f"`{name}`, {bits} bits")
        rows.append([str(size), label, SEARCHES[way], *cells, speed])
    return markdown(rows)


def running_time() -> str:
    """Return the time of each benchmark: the sum over its cells, on one thread."""
    rows = [["records", "cells", "fit, minutes", "encode, minutes"]]
    for name in (*ALL_SETS.values(), "trade-off", "lengths", "ablations", "paper-regime"):
        runs = read_records(RESULTS / f"{name}.jsonl")
        minutes = (sum(r[f"{part}_seconds"] for r in runs) / 60 for part in ("fit", "encode"))
        rows.append([f"`{name}.jsonl`", str(len(runs)), *(f"{m:.0f}" for m in minutes)])
    return markdown(rows)


TABLES = {
    "audit-short": guide_tables.audit_short,
    "audit-recall": guide_tables.audit_recall,
    "audit-ndcg": guide_tables.audit_ndcg,
    "audit-new-sets": guide_tables.audit_new_sets,
    "descent": guide_tables.descent,
    "levels": guide_tables.levels,
    "integrations-start": guide_tables.integrations_start,
    "integrations-search": guide_tables.integrations_search,
    "integrations-mteb": guide_tables.integrations_mteb,
    "fault-injection": guide_tables.fault_injection,
    "search-speed": guide_tables.search_speed,
    "scale": lambda: scale_table(read_records(RESULTS / "hundred_million.jsonl")),
    "recall-speed": lambda: recall_speed_table(read_records(RESULTS / "recall_speed.jsonl")),
    "floats": against_vectors,
    "ten-sets": against_the_best,
    "cifar10": lambda: by_length(records("cifar10"), new_items=True),
    "unlabelled-short": lambda: unlabelled(short=True),
    "unlabelled": lambda: unlabelled(short=False),
    "map": lambda: matrix(lambda runs: compact([r["map"] for r in runs])),
    "radius": lambda: matrix(precision_recall),
    "lookup": lookup,
    "cifar10-radius": lambda: radius(records("cifar10")),
    "cifar10-bits": lambda: bit_statistics(records("cifar10")),
    "multi-label": multi_label,
    "trade-off": lambda: trade_off(records("trade-off")),
    "ablations": lambda: ablations(read_records(RESULTS / "ablations.jsonl")),
    "paper": against_the_paper,
    "paper-short": networks_of_the_paper,
    "paper-differences": paired_differences,
    "claims": claims,
    "complexity": complexity,
    "labels-only": lambda: choices(read_records(RESULTS / "labels-only-validation.jsonl")),
    "labels-only-reduced": labels_only_reduced,
    "lookup-frontier": lambda: lookup_frontier(short=True),
    "lookup-grid": lambda: lookup_frontier(short=False),
    "convolutional": convolutional,
    "recipe": lambda: variants("paper", "paper-recipe"),
    "reproduced": lambda: variants("reproduced", "reproduced-validation"),
    "choices": lambda: choices(read_records(RESULTS / "validation.jsonl")),
    "running-time": running_time,
}
BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(text: str) -> str:
    """Replace each marked section by its table."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", text)


CLI_INTRO = """# Command line

The help texts of all commands, written by `make results` (`python benchmarks/render.py`) from
`antipodal --help`. A test fails if this page and the help texts differ.

| task | commands |
|---|---|
| measure recall without labels | `audit` |
| build and search a collection | `build`, `search`, `add`, `get`, `delete`, `info` |
| serve | `serve`, `switch` |
| back up, copy, export | `store`, `export` |
| single steps | `fit`, `encode`, `index` |
| evaluate and compare | `evaluate`, `bench`, `report` |
| other | `datasets`, `demo` |

- **Input files** are `.npy`, `.npz`, parquet, Arrow, CSV or JSON Lines, written as `FILE` or
  `FILE:COLUMN`: [file formats](file-formats.md).
- **Output**: `--json` prints one JSON object per line, in all commands except `serve`. Progress
  goes to standard error.
- **Exit codes**: 0 success, 1 bad data (one line on standard error), 2 bad usage.
- **Environment variables**: `ANTIPODAL_STORE` and `ANTIPODAL_STORE_TO` hold store URLs,
  `ANTIPODAL_KEYS` API keys of a service, `ANTIPODAL_KEY` that of its clients, `ANTIPODAL_EMBED_KEY`
  that of an embedding endpoint, `ANTIPODAL_DATA` the folder of the data sets, `TMPDIR` temporary
  files.
- **Shell completion**: `antipodal --install-completion`.

"""
# Options of every command, described in the introduction.
COMMON = re.compile(r"^\* `--(?:help|json)`: .*\n", re.MULTILINE)
USAGE = re.compile(r"\*\*Usage\*\*:\n\n```console\n\$ .*?\n```\n")
EXAMPLE = re.compile(r"^Example: (.*)\n", re.MULTILINE)


def command_line() -> str:
    """Return the reference of all commands from their help texts, with examples first."""
    command = get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="antipodal")
    text = COMMON.sub("", text[text.index("## ") :]).replace("<int range>", "<int>")
    sections = []
    for section in re.split(r"^(?=##)", text.replace("<float range>", "<float>"), flags=re.M)[1:]:
        if example := EXAMPLE.search(section):
            block = f"```console\n$ {example[1]}\n```\n"
            section = USAGE.sub(lambda _, block=block: block, EXAMPLE.sub("", section))
        sections.append(section.replace("**Options**:\n\n\n", "").strip() + "\n")
    return CLI_INTRO + "\n".join(sections)


def current_pages() -> dict[Path, str]:
    """Return the expected text of every generated page."""
    pages = {page: render(page.read_text()) for page in PAGES}
    return pages | {ROOT / "docs" / "reference" / "cli.md": command_line()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only; write nothing")
    check = parser.parse_args().check
    pages = current_pages()
    stale = [page for page in pages if not page.exists() or page.read_text() != pages[page]]
    for page in stale:
        if not check:
            page.write_text(pages[page])
        print(f"{page.relative_to(ROOT)} {'differs from the records' if check else 'written'}")
    if check and stale:
        sys.exit("run `make results`")


if __name__ == "__main__":
    main()
