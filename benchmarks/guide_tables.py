"""Tables of README and the user guide, from the records of audits and fault-injection tests."""

import json
from pathlib import Path
from typing import Any

import antipodal
from antipodal.bench.records import read_records

RESULTS = Path(__file__).parent / "results"

# Audited data sets, by the names of their records. All but the last have 384 dimensions.
AUDITS = {
    "SciFact": "scifact",
    "CLINC150": "clinc150",
    "banking77": "banking77",
    "1,000,000 generated": "million",
    "CIFAR-10, CNN features": "cifar_effnet",
}
OF_384 = list(AUDITS)[:4]
# The codes of README at one bit per dimension, and the way in which each is searched.
ONE_BIT = {
    ("LinfHash.asymmetric", "asymmetric"): "**`LinfHash.asymmetric`**",
    ("RaBitQ, 1 bit", "asymmetric"): "RaBitQ (Faiss), 8 bytes more",
    ("TurboQuant, 1 bit", "asymmetric"): "TurboQuant (Faiss)",
    ("PQ", "asymmetric"): "product quantisation (Faiss)",
    ("ITQ", "asymmetric"): "`ITQ`",
    ("ITQ", "hamming"): "`ITQ`, binary queries",
}


def audit(name: str) -> list[dict[str, Any]]:
    """Return the settings of an audit, one record per code and way of searching."""
    if name == "million":
        settings = json.loads((RESULTS / "audit-million.json").read_text())["settings"]
    else:
        settings = read_records(RESULTS / f"audit-{name}.jsonl")
    return [setting for setting in settings if "advice" not in setting]


def label(method: str) -> str:
    """Return a code's name as it is shown: hashers in code type."""
    return method.replace(" bit", " bit/dim") if ", " in method else f"`{method}`"


def audit_short() -> str:
    """Return recall@10 at one bit per dimension, before and after reranking."""
    sets = {"SciFact": 48, "CLINC150": 48, "CIFAR-10, CNN features": 160}
    lines = ["| code | " + " | ".join(f"{s}, {b} bytes" for s, b in sets.items()) + " |",
             "|---|--:|--:|--:|"]  # fmt: skip
    for (method, search), shown in ONE_BIT.items():
        cells = []
        for name, size in sets.items():
            [found] = [
                r for r in audit(AUDITS[name])
                if (r["method"], r["search"]) == (method, search) and size <= r["bytes"] <= size + 8
            ]  # fmt: skip
            cells.append(f"{found['recall']:.3f} → {found['recall_x4']:.3f}")
        lines.append(f"| {shown} | {' | '.join(cells)} |")
    return "\n".join(lines)


def audit_recall() -> str:
    """Return recall@10 of every code of the 384-dimensional data sets."""
    cells = {
        (r["bytes"], r["method"], r["search"], name): r["recall"]
        for name in OF_384 for r in audit(AUDITS[name])
    }  # fmt: skip
    lines = ["| bytes | code | search | " + " | ".join(OF_384) + " |", "|--:|---|---|" + "--:|" * 4]
    for size, method, search in sorted({key[:3] for key in cells}):
        if method == "SignHash:rotate=false" or method.startswith("LSH"):
            continue  # never the best code, and close to the rotated signs
        if method == "LinfHash.asymmetric" and search == "hamming":
            continue  # these codes are for asymmetric search
        found = [cells.get((size, method, search, name)) for name in OF_384]
        if found.count(None) > 2:
            continue
        values = " | ".join("–" if value is None else f"{value:.3f}" for value in found)
        lines.append(f"| {size} | {label(method)} | {search} | {values} |")
    return "\n".join(lines)


# Sets of embedding_sets.py, on which no setting was chosen.
NEW_SETS = {
    "gcide-minilm": "dictionary, MiniLM, 384-d",
    "gcide-wordllama": "dictionary, WordLlama, 256-d",
    "wink": "words, 100-d",
}


def audit_new_sets() -> str:
    """Return recall@10 of our codes and of the best rivals, by code size."""
    lines = ["| vectors | bytes | ours | best rival, at most these bytes "
             "| best rival, up to 1.5 times the bytes |", "|---|--:|--:|---|---|"]  # fmt: skip
    for name, shown in NEW_SETS.items():
        found = audit(name)
        ours = [r for r in found if r["method"] == "LinfHash.asymmetric"]
        rivals = [
            r for r in found if not hasattr(antipodal, r["method"].split(":")[0].split(".")[0])
        ]
        for r in read_records(RESULTS / "unlabelled-ash.jsonl"):
            if r["set"] == name:
                _, _, n, centroids = r["method"].split()
                rivals.append(r | {"method": f"ASH, {n} bit" + ", IVF64" * (centroids == "64")})
        for r in sorted(ours, key=lambda r: r["bytes"]):
            if r["search"] == "hamming":
                continue
            cells = [f"{r['recall']:.3f} ± {r['recall_error']:.3f}"]
            for most in (r["bytes"], 1.5 * r["bytes"]):
                near = [o for o in rivals if r["bytes"] / 2 < o["bytes"] <= most]
                best = max(near, key=lambda o: o["recall"], default=None)
                if best is None:
                    cells.append("–")
                else:
                    cells.append(f"{best['recall']:.3f} {best['method']}, {best['bytes']} bytes")
            lines.append(f"| {shown} | {r['bytes']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def audit_ndcg() -> str:
    """Return nDCG@10 of the judged claims of SciFact at 48 and 96 bytes."""
    lines = ["| bytes | code | search | recall@10 | nDCG@10 | nDCG@10 after ×4 reranking |",
             "|--:|---|---|--:|--:|--:|"]  # fmt: skip
    for r in sorted(audit("scifact"), key=lambda r: (r["bytes"], -r["ndcg"])):
        shown = r["method"] in ("LinfHash.asymmetric", "ITQ", "PQ") or ", " in r["method"]
        if r["search"] == "asymmetric" and shown and 48 <= r["bytes"] <= 116:
            reranked = f"{r['ndcg_x4']:.3f}" if r.get("ndcg_x4") is not None else "–"
            lines.append(
                f"| {r['bytes']} | {label(r['method'])} | {r['search']} | {r['recall']:.3f} "
                f"| {r['ndcg']:.3f} | {reranked} |"
            )
    return "\n".join(lines)


def integrations() -> list[dict[str, Any]]:
    """Return the runs of benchmarks/integrations.py, by data set."""
    runs: list[dict[str, Any]] = json.loads((RESULTS / "integrations.json").read_text())["runs"]
    return runs


def integrations_start() -> str:
    """Return the recall of a store that begins empty, and of models fitted to more rows."""
    runs = [run for run in integrations() if "start" in run]
    names = [f"{SHOWN[run['data']]}, {run['rows']:,} rows" for run in runs]
    lines = [f"| recall@10 of 48 bytes, then reranked ×4 | {' | '.join(names)} |", "|---|--:|--:|"]
    for starts in zip(*(run["start"] for run in runs), strict=True):
        n = starts[0]["fitted_to"]
        what = f"model fitted to the first {n:,} rows" if n else "random frame"
        if n == runs[0]["rows"]:
            what = "model fitted to all rows"
        cells = [f"{one['recall']:.3f}; {one['reranked']:.3f}" for one in starts]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


SHOWN = {"clinc150": "CLINC150", "banking77": "Banking77"}


def integrations_search() -> str:
    """Return recall, size and time next to sentence-transformers."""
    runs = [run for run in integrations() if "search" in run]
    record = json.loads((RESULTS / "integrations.json").read_text())
    names = " | ".join(SHOWN[run["data"]] for run in runs)
    lines = [
        f"| library | codes | bytes per vector | index | {names} | time |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for rows in zip(*(run["search"] for run in runs), strict=True):
        first = rows[0]
        size = f"{first['bytes']:,}"
        if first.get("vector_bytes"):
            size += f" + {first['vector_bytes']}"
        cells = [
            first["library"], first["method"], size, f"{first['index_bytes'] / 1e6:.1f} MB",
            *(f"{row['recall']:.3f}" for row in rows),
            f"{1000 * first['seconds'] / record['queries']:.2f} ms",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def integrations_mteb() -> str:
    """Return nDCG@10 of SciFact by mteb."""
    [scores] = [run["mteb"] for run in integrations() if "mteb" in run]
    lines = ["| SciFact, nDCG@10 by `mteb.evaluate` | bytes per vector | |", "|---|--:|--:|"]
    for row in scores:
        score = f"{row['ndcg_at_10']:.3f}" if row["ndcg_at_10"] else "none"
        lines.append(f"| {row['model']} | {row['bytes']:,} | {score} |")
    return "\n".join(lines)


def descent() -> str:
    """Return recall@10 of `LinfHash.asymmetric` without its parts, and with more effort."""
    names = {"clinc150": "CLINC150", "scifact": "SciFact", "banking77": "banking77"}
    cells: dict[tuple[str, int, int], dict[str, float]] = {}
    for r in read_records(RESULTS / "descent.jsonl"):
        case = names[r["data"]], r["bits"], r["rows_to_fit"]
        cells.setdefault(case, {})[r["setting"]] = r["recall"]
    lines = ["| recall@10 | bits | rows to fit | descent | tabu search | **for likely queries** "
             "| effort 3 |", "|---|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    columns = "descent", "search", "asymmetric", "effort 3"
    for (name, bits, n_rows), recalls in cells.items():
        if "descent" in recalls:
            values = " | ".join(f"{recalls[column]:.3f}" for column in columns)
            lines.append(f"| {name} | {bits} | {n_rows:,} | {values} |")
    return "\n".join(lines)


def levels() -> str:
    """Return recall@10 and speed of long codes with two divisions into levels."""
    cells: dict[int, dict[str, Any]] = {}
    for r in read_records(RESULTS / "descent.jsonl"):
        cells.setdefault(r["bits"], {})[f"{r['data']}, {r['setting']}"] = r
    lines = ["| bits | one bit per feature and level | **default** | encoding, relative speed |",
             "|--:|--:|--:|--:|"]  # fmt: skip
    for bits, runs in sorted(cells.items()):
        if even := runs.get("clinc150, even levels"):
            ours = runs["clinc150, asymmetric"]
            speed = ours["rows_per_second"] / even["rows_per_second"]
            lines.append(f"| {bits} | {even['recall']:.3f} | {ours['recall']:.3f} | {speed:.2f} |")
    return "\n".join(lines)


def search_speed() -> str:
    """Return the throughput of `HammingIndex` over a million codes relative to other libraries."""
    record = json.loads((RESULTS / "search.json").read_text())
    kinds = ["64 bits, random", "64 bits, crowded", "256 bits, random", "256 bits, crowded"]
    rows: dict[str, list[str]] = {}
    for part in (record[kind] for kind in kinds):
        for way, shown in (("at once", "batched"), ("one by one", "single queries")):
            runs = part["k = 10"][way]
            for library in ("faiss", "usearch", "numpy"):
                if library in runs:
                    ours, theirs = (runs[n]["queries_per_second"] for n in ("antipodal", library))
                    label = f"10 nearest, {shown}, relative to {LIBRARIES[library]}"
                    rows.setdefault(label, []).append(ratio(ours / theirs))
        runs = part["radius 2"]["runs"]
        for way, shown in (("at once", "batched"), ("one by one", "single queries")):
            ours = runs[f"antipodal {way}"]
            label = f"radius 2, {shown}, relative to "
            rows.setdefault(label + "Faiss", []).append(ratio(ours["times_faiss"]))
            other = runs[f"multihash {way}"]["queries_per_second"]
            rows.setdefault(label + "MultiHash", []).append(
                ratio(ours["queries_per_second"] / other)
            )
        filtered = part["filter"]["at once"]["1%"]["times_unfiltered"]
        label = "10 nearest among 1 %, relative to all items"
        rows.setdefault(label, []).append(ratio(filtered))
        opened = f"{part['open']['best_milliseconds']:.0f} ms"
        rows.setdefault("time to open the file", []).append(opened)
    lines = ["| a million codes | " + " | ".join(kinds) + " |", "|---|--:|--:|--:|--:|"]
    lines += [f"| {label} | {' | '.join(cells)} |" for label, cells in rows.items()]
    return "\n".join(lines)


LIBRARIES = {"faiss": "Faiss", "usearch": "usearch", "numpy": "NumPy"}


def ratio(value: float) -> str:
    """Return a ratio with the digits that matter."""
    return f"{value:.0f}×" if value >= 10 else f"{value:.2f}×"


# Counts of the records that the table shows, and their names in it.
COUNTS = {
    "kills": "kills", "acknowledged": "acknowledged writes", "half there": "partial writes",
    "operations": "operations", "points": "fault points", "states": "states",
    "answers": "answers", "torn": "inconsistent answers", "refused": "refused", "used": "accepted",
    "answers checked": "answers checked", "batches acknowledged": "acknowledged batches",
    "kill it": "kills", "restore it": "restores", "switch model": "model swaps",
    "saves": "saves", "loads": "loads", "deletions": "deletions",
}  # fmt: skip


def fault_injection() -> str:
    """Return the last run of each fault-injection test, the kinds of fuzzed input together."""
    last = {
        (record["campaign"], record["part"]): record
        for path in sorted(RESULTS.glob("campaign-*.jsonl"))
        for record in read_records(path)
    }
    runs: dict[str, list[dict[str, Any]]] = {}
    for (name, part), record in sorted(last.items()):
        runs.setdefault("fuzz.py" if name == "fuzz" else f"{name}.py {part}", []).append(record)
    lines = ["| test | counts | failures | version | seed | minutes |", "|---|---|--:|---|--:|--:|"]
    for name, records in runs.items():
        counts = []
        for key, shown in COUNTS.items():
            values = [r[key] for r in records if key in r]
            if values:
                first = values[0]
                if isinstance(first, dict):
                    shown, values = "requests", list(first.values())
                counts.append(f"{sum(values):,} {shown}")
        failures = sum(len(r["failures"]) for r in records)
        minutes = sum(r["seconds"] for r in records) / 60
        versions = ", ".join(sorted({r["version"] for r in records}))
        seed = records[0]["seed"] if len(records) == 1 else f"{len(records)} seeds"
        lines.append(
            f"| `{name}` | {', '.join(counts)} | {failures} | {versions} | {seed} | {minutes:.0f} |"
        )
    return "\n".join(lines)
