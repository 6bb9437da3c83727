"""Write docs/reference/cli.md and the tables of the documentation from the recorded runs.

python benchmarks/render.py            # or: make results
python benchmarks/render.py --check    # fail if a page is not what the records say
"""

import argparse
import json
import math
import re
import sys
from pathlib import Path
from statistics import mean, stdev

import typer
from hundred_million import table as scale_table
from typer.cli import get_docs_for_click
from typer.main import get_command

from antipodal.benchmark.records import Record, read_records
from antipodal.benchmark.summary import published_scores, spread, table
from antipodal.cli import app

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in (
            "guide/audit",
            "guide/reliability",
            "guide/scaling",
            "research/method",
            "research/results",
            "research/results-appendix",
            "research/unlabelled",
        )
    ),
]


def markdown(rows: list[list[str]]) -> str:
    """Lay out headings and rows as a Markdown table, numbers to the right."""
    headings, *body = rows
    rule = ["---", *["--:"] * (len(headings) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (headings, rule, *body))


ORDER = [
    "DeepLinf", "NNHash", "SparseHash", "OrthoHash", "CSQ", "KSH", "SDH", "PSH", "LDAHash", "BRE",
    "OneHotHash", "ClassifierLSH", "Ceiling", "Cosine", "CentredCosine", "AGH", "AGH1", "AGH2",
    "LinfHash", "ITQ", "SpectralHash", "LSH", "SignHash",
]  # fmt: skip


# What README shows: ours, the strongest rivals, one without labels, and what no code reaches.
SHORT = [
    "DeepLinf", "DeepLinf:n_unlabelled=0", "NNHash", "ClassifierLSH", "ITQ", "Ceiling",
]  # fmt: skip


def records(name: str) -> list[Record]:
    """Read a file of recorded runs, those with labels first."""

    def place(record: Record) -> tuple[int, str, int, int]:
        method, _, settings = record["method"].replace(".", ":", 1).partition(":")
        return ORDER.index(method), settings, record["bits"], record["seed"]

    found = read_records(RESULTS / f"{name}.jsonl")
    # Of a cell that was measured again, by another version or with other defaults, the last.
    last = {(r["method"], r["bits"], r["seed"]): r for r in found}
    return sorted(last.values(), key=place)


def by_length(runs: list[Record]) -> str:
    """Lay out one row per method, and for each code length our mAP and the paper's."""
    lengths = sorted({r["bits"] for r in runs} - {0})
    rows = [["method", *(f"mAP, {b} bits{who}" for b in lengths for who in ("", ", paper"))]]
    for method in dict.fromkeys(r["method"] for r in runs):
        cells = []
        for bits in lengths:
            mine = [r for r in runs if r["method"] == method and r["bits"] in (bits, 0)]
            if not mine:
                cells += ["–", ""]
                continue
            paper = published_scores(mine[0]).get("map")
            cells += [spread([r["map"] for r in mine]), "" if paper is None else f"{paper:.2f}"]
        rows.append([named(method), *cells])
    return markdown(rows)


def named(method: str) -> str:
    """Classes in code type; rankings by floats are not classes."""
    uncoded = {
        "Ceiling": "no code: the SVM's probabilities",
        "Cosine": "no code: cosine",
        "CentredCosine": "no code: cosine less the mean",
    }
    if method in uncoded:
        return uncoded[method]
    name, *settings = method.split(":")
    if settings and "=" not in settings[0]:  # module:Class
        name, *settings = settings
    return f"`{name}({', '.join(settings)})`" if settings else f"`{name}`"


# The ten sets on which codes of 64 bits are compared, by their records.
SETTINGS = {
    "CIFAR10, GIST": "cifar10",
    "the same with mirror images": "cifar10-mirrored",
    "Fashion-MNIST, pixels": "fashion-mnist",
    "MNIST, pixels": "mnist",
    "digits, pixels": "digits",
    "CLINC150, sentences": "clinc150",
    "banking77, sentences": "banking77",
    "COCO, visual words": "coco_bow500",
    "COCO without its top concept": "coco_bow500-without-top-1",
    "Corel16k, regions": "corel16k",
}


def against_the_best() -> str:
    """Lay out a row per set: DeepLinf, the best other code, and their difference split by split."""
    rows = [["64 bits", "splits", "`DeepLinf`", "best other code", "its mAP", "difference",
             "new items: `DeepLinf`", "best other code there", "difference"]]  # fmt: skip
    for setting, name in SETTINGS.items():
        runs = [r for r in records(name) if r["bits"] == 64]
        splits = [r["seed"] for r in runs if r["method"] == "DeepLinf"]
        cells = [setting, str(len(splits))]
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


# What the floats reach by themselves, and what codes of them do.
FLOATS = {
    "Cosine": "the floats, by cosine",
    "CentredCosine": "the floats less their mean, by cosine",
    "ITQ": "64 bits without labels, `ITQ`",
    "DeepLinf": "**64 bits with labels, `DeepLinf`**",
    "Ceiling": "no code: the SVM's probabilities",
}


def beside_the_floats() -> str:
    """Lay out a row per way to rank, and a column per set."""
    sets = {
        "banking77": "banking77", "CLINC150": "clinc150", "CIFAR-10, CNN features": "cifar_effnet"
    }  # fmt: skip
    runs = {title: records(name) for title, name in sets.items()}
    rows = [["mAP of ranking by", *sets]]
    for method, label in FLOATS.items():
        scores = [[r["map"] for r in runs[t] if r["method"] == method] for t in sets]
        rows.append([label, *map(spread, scores)])
    return markdown(rows)


def full(runs: list[Record]) -> str:
    """All columns, a row for each method and length."""
    headings, *rows = table(runs)
    return markdown([headings, *[[named(row[0]), *row[1:]] for row in rows]])


def encoding_speed(runs: list[Record]) -> float:
    """Return the mean number of rows encoded per second."""
    return mean((r["queries"] + r["database"]) / r["encode_seconds"] for r in runs)


def health(runs: list[Record]) -> str:
    """Bits and speed: a row for each method and length."""
    rows = [
        ["method", "bits", "balance", "correlation", "distinct codes", "quantisation error",
         "fit, s", "rows encoded per second", "peak memory, MB"]
    ]  # fmt: skip
    for method, bits in dict.fromkeys((r["method"], r["bits"]) for r in runs if r["bits"]):
        mine = [r for r in runs if (r["method"], r["bits"]) == (method, bits)]

        def average(name: str, mine: list[Record] = mine) -> float:
            return mean(r[name] for r in mine)

        rows.append(
            [named(method), str(bits), f"{average('bit_balance'):.1f}",
             f"{average('bit_correlation'):.1f}", f"{average('distinct_codes'):,.0f}",
             f"{average('quantisation_error'):.0f}", f"{average('fit_seconds'):.1f}",
             f"{round(encoding_speed(mine), -3):,.0f}", f"{max(r['peak_mb'] for r in mine):,}"]
        )  # fmt: skip
    return markdown(rows)


def demo(runs: list[Record]) -> str:
    """Lay out what `antipodal demo` measures."""
    keys = ("precision_r2", "recall_r2", "empty_r2")
    rows = [["method", "mAP", "worst to best tie order", "P r≤2", "R r≤2", "empty r≤2"]]
    for method in dict.fromkeys(r["method"] for r in runs):
        mine = [r for r in runs if r["method"] == method]
        worst, best = (mean(r[f"map_{order}"] for r in mine) for order in ("worst", "best"))
        rows.append(
            [named(method), spread([r["map"] for r in mine]), f"{worst:.1f} to {best:.1f}",
             *(spread([r[key] for r in mine]) for key in keys)]
        )  # fmt: skip
    return markdown(rows)


def ablations(runs: list[Record]) -> str:
    """Lay out a row for each change, in the order they were run: scores, and what mAP became."""
    keys = ("precision_r2", "recall_r2", "precision_r0", "quantisation_error")
    rows = [["change", "mAP", "against the default", *("P r≤2", "R r≤2", "P r=0"),
             "quantisation error"]]  # fmt: skip
    usual = {r["seed"]: r["map"] for r in runs if r["method"] == "DeepLinf"}
    for method in dict.fromkeys(r["method"] for r in runs):
        mine = [r for r in runs if r["method"] == method]
        name, *settings = method.split(":")
        changes = [r["map"] - usual[r["seed"]] for r in mine]
        label = ", ".join([*(["the paper's setting"] if name == "DeepLinf.paper" else []),
                           *(f"`{setting}`" for setting in settings)])  # fmt: skip
        rows.append(
            [label or "none", spread([r["map"] for r in mine]),
             f"{mean(changes):+.1f}" if label else "",
             *(spread([r[key] for r in mine]) for key in keys)]
        )  # fmt: skip
    return markdown(rows)


def choices(runs: list[Record]) -> str:
    """Lay out a row a setting and a column a set."""
    sets = list(dict.fromkeys(r["data"] for r in runs))
    rows = [["setting", *sets]]
    for method in dict.fromkeys(r["method"] for r in runs):
        found = {r["data"]: f"{r['map']:.1f} ± {r['map_sd']:.1f}" for r in runs
                 if r["method"] == method}  # fmt: skip
        rows.append([named(method), *(found.get(name, "–") for name in sets)])
    return markdown(rows)


def recipe(runs: list[Record]) -> str:
    """Lay out what the paper's setting reaches where it leaves things open, a row a change."""
    rows = [["`DeepLinf.paper` with", "mAP", "P r≤2", "R r≤2"]]
    for r in runs:
        changes = ", ".join(f"`{change}`" for change in r["method"].split(":")[1:])
        scores = (r["map"], r["precision_r2"], r["recall_r2"])
        rows.append([changes or "no change", *(f"{score:.1f}" for score in scores)])
    return markdown(rows)


def audited(settings: list[Record]) -> str:
    """Lay out an audit, a row a code: what each way to search finds, with and without vectors."""
    judged = "ndcg" in settings[0]
    codes: dict[tuple[int, str], dict[str, Record]] = {}
    for setting in settings:
        codes.setdefault((setting["bytes"], setting["method"]), {})[setting["search"]] = setting
    columns = {
        "Hamming": ("hamming", "recall"), "then ×4 by vectors": ("hamming", "recall_x4"),
        "real queries": ("asymmetric", "recall"),
        "then ×4 by vectors ": ("asymmetric", "recall_x4"),
    }  # fmt: skip
    if judged:
        columns |= {
            "nDCG, Hamming": ("hamming", "ndcg"), "nDCG, Hamming ×4": ("hamming", "ndcg_x4"),
            "nDCG, real queries": ("asymmetric", "ndcg"),
        }  # fmt: skip
    rows = [["bytes", "code", *columns]]
    for (size, method), ways in sorted(codes.items()):
        cells = []
        for way, key in columns.values():
            found = ways.get(way)
            if found is None:
                cells.append("–")
            elif key == "recall":
                cells.append(f"{found[key]:.3f} ± {found['recall_error']:.3f}")
            else:
                cells.append(f"{found[key]:.3f}")
        rows.append([str(size), named(method) if ", " not in method else method, *cells])
    return markdown(rows)


NOT_SHOWN = {
    "campaign", "part", "version", "date", "command", "seed", "size", "seconds", "failures",
    "messages",
}  # fmt: skip


def campaigns() -> str:
    """Lay out the last run of each part of each campaign of faults: what was done, what failed."""
    last = {
        (record["campaign"], record["part"]): record
        for path in sorted(RESULTS.glob("campaign-*.jsonl"))
        for record in read_records(path)
    }
    lines = ["| campaign | what was done | failures | when | to repeat |", "|---|---|--:|---|---|"]
    for (name, part), record in sorted(last.items()):
        done = ", ".join(
            f"{key} {_number(value)}" for key, value in record.items() if key not in NOT_SHOWN
        )
        when = f"{record['date'][:10]}, {record['version']}, {record['seconds'] / 60:.0f} min"
        lines.append(
            f"| {name}, {part} | {done} | {len(record['failures'])} | {when} "
            f"| `{record['command']}` |"
        )
    return "\n".join(lines)


def _number(value: object) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{key} {_number(one)}" for key, one in value.items()) + ")"
    return f"{value:,}" if isinstance(value, int) else str(value)


TABLES = {
    "campaigns": campaigns,
    "scale": lambda: scale_table(read_records(RESULTS / "hundred_million.jsonl")),
    **{
        f"audit-{name}": lambda name=name: audited(read_records(RESULTS / f"audit-{name}.jsonl"))
        for name in ("scifact", "clinc150", "banking77", "cifar_effnet")
    },
    "audit-million": lambda: audited(
        json.loads((RESULTS / "audit-million.json").read_text())["settings"]
    ),
    "recipe": lambda: recipe(read_records(RESULTS / "paper-recipe.jsonl")),
    "ten-settings": against_the_best,
    "floats": beside_the_floats,
    "mnist": lambda: full(records("mnist")),
    "banking77": lambda: full(records("banking77")),
    "digits-64": lambda: full(records("digits")),
    "cifar-effnet": lambda: full(records("cifar_effnet")),
    "choices": lambda: choices(read_records(RESULTS / "validation.jsonl")),
    "ablations": lambda: ablations(read_records(RESULTS / "ablations.jsonl")),
    "cifar10-short": lambda: by_length(
        [r for method in SHORT for r in records("cifar10") if r["method"] == method]
    ),
    "cifar10": lambda: by_length(records("cifar10")),
    "cifar10-full": lambda: full(records("cifar10")),
    "cifar10-mirrored": lambda: full(records("cifar10-mirrored")),
    "cifar10-health": lambda: health(records("cifar10")),
    "cifar10-unseen": lambda: full(records("cifar10-unseen")),
    "fashion-mnist": lambda: full(records("fashion-mnist")),
    "clinc150": lambda: full(records("clinc150")),
    "trade-off": lambda: full(records("trade-off")),
    "coco": lambda: full(records("coco_bow500")),
    "coco-without": lambda: full(records("coco_bow500-without-top-1")),
    "corel16k": lambda: full(records("corel16k")),
    "digits": lambda: demo(records("demo")),
}
BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(text: str) -> str:
    """Fill in the tables between their marks."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", text)


def command_line() -> str:
    """Describe every command and option, as --help does."""
    command = get_command(app)
    return get_docs_for_click(obj=command, ctx=typer.Context(command), name="antipodal")


def current_pages() -> dict[Path, str]:
    """Return every page as it should be."""
    pages = {page: render(page.read_text()) for page in PAGES}
    return pages | {ROOT / "docs" / "reference" / "cli.md": command_line()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    pages = current_pages()
    stale = [page for page in pages if not page.exists() or page.read_text() != pages[page]]
    for page in stale:
        if not check:
            page.write_text(pages[page])
        print(f"{page.relative_to(ROOT)} {'is not what the records say' if check else 'written'}")
    if check and stale:
        sys.exit("run `make results`")


if __name__ == "__main__":
    main()
