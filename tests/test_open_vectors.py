"""Reading vectors from files of every format: exact values, and errors that name the cause."""

import csv
import gzip
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import feather, parquet

import antipodal.io.numpy_files
from antipodal import LSH, AntipodalError, open_vectors
from antipodal.io.vectors import read_column
from antipodal.validation import known_labels
from effort import examples

RNG = np.random.default_rng(0)
X = RNG.standard_normal((53, 4)).astype(np.float32)
IDS = np.arange(53) * 3 + 1
WORDS = [("zebra", "éclair", "日本")[i % 3] for i in range(53)]
HOT = np.eye(3, dtype=np.int64)[IDS % 3]


def table(rows=X, vectors=None):
    """Return the rows as an Arrow table of ids, words and vectors."""
    n = len(rows)
    if vectors is None:
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    return pa.table(
        {"id": IDS[:n], "word": WORDS[:n], "vector": vectors, "hot": HOT[:n].tolist()}
    ).select(["id", "word", "vector"])


def write_parquet(path, rows=X):
    parquet.write_table(table(rows), path, row_group_size=20)


def write_lists(path, rows=X):
    lists = pa.array(rows.tolist(), pa.list_(pa.from_numpy_dtype(rows.dtype)))
    parquet.write_table(table(rows, lists), path, row_group_size=20)


def write_wide(path, rows=X):
    columns = {f"f{i}": rows[:, i] for i in range(rows.shape[1])}
    parquet.write_table(pa.table({"id": IDS, **columns, "word": WORDS}), path, row_group_size=20)


def write_feather(path, rows=X):
    feather.write_feather(table(rows), path, chunksize=20)


def write_stream(path, rows=X):
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table(rows).schema) as out:
        out.write_table(table(rows), max_chunksize=20)


def write_lines(path, rows=X):
    objects = [
        {"id": int(i), "vector": row, "word": word}
        for i, row, word in zip(IDS, rows.tolist(), WORDS, strict=False)
    ]
    text = "\n".join(map(json.dumps, objects)) + "\n\n"
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_csv(path, rows=X):
    """Write the vectors in columns f0, f1, …."""
    opener = gzip.open if str(path).endswith(".gz") else open
    with opener(path, "wt", encoding="utf-8", newline="") as file:
        tabs = ".tsv" in str(path)
        out = csv.writer(file, delimiter="\t" if tabs else ",")
        out.writerow(["id", *(f"f{i}" for i in range(rows.shape[1])), "word"])
        out.writerows(
            [i, *row, word] for i, row, word in zip(IDS, rows.tolist(), WORDS, strict=False)
        )


def write_text_csv(path, rows=X):
    """Write the vectors as text, alternately in the notations of JSON and of NumPy."""
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(["id", "vector", "word"])
        for i, row, word in zip(IDS, rows, WORDS, strict=False):
            numbers = [repr(float(x)) for x in row]
            text = ", ".join(numbers) if i % 2 else "\n ".join(numbers)
            out.writerow([i, f"[{text}]", word])


def write_npz(path, rows=X):
    np.savez_compressed(path, id=IDS[: len(rows)], vector=rows, word=np.array(WORDS[: len(rows)]))


KINDS = {
    "a.parquet": write_parquet,
    "lists.pq": write_lists,
    "wide.parquet:f*": write_wide,
    "a.feather": write_feather,
    "a.arrow": write_stream,
    "a.jsonl": write_lines,
    "a.ndjson.gz": write_lines,
    "a.csv:f*": write_csv,
    "b.csv:f0,f1,f2,f3": write_csv,
    "a.csv.gz:f*": write_csv,
    "a.tsv:f?": write_csv,
    "text.csv": write_text_csv,
    "a.npz": write_npz,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, source, rows=X):
    KINDS[source](folder / source.partition(":")[0], rows)
    return source


@pytest.mark.parametrize("source", KINDS)
def test_vectors_columns_and_records_equal_the_written_ones(folder, source):
    file = open_vectors(write(folder, source))
    assert (file.n_rows, file.n_features, len(file), file.shape) == (53, 4, 53, (53, 4))
    assert file.dtype == (np.float64 if "csv" in source or "json" in source else file.dtype)
    blocks = list(file.blocks(7))
    assert max(map(len, blocks)) <= 7
    assert {block.dtype for block in blocks} == {file.dtype}
    np.testing.assert_array_equal(np.concatenate(blocks), X)
    np.testing.assert_array_equal(np.asarray(file), X)
    rows = [0, 1, 1, 19, 20, 52]
    np.testing.assert_array_equal(file.take(rows), X[rows])
    np.testing.assert_array_equal(file.column("id"), IDS)
    assert file.column("word").tolist() == WORDS
    records = list(file.records(["word", "id"]))
    assert records == [{"word": word, "id": i} for word, i in zip(WORDS, IDS.tolist(), strict=True)]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint8])
@pytest.mark.parametrize(
    "source", ["a.parquet", "lists.pq", "wide.parquet:f*", "a.feather", "a.npz"]
)
def test_the_dtype_is_preserved(folder, source, dtype):
    rows = (X * 20).astype(dtype)
    file = open_vectors(write(folder, source, rows))
    assert file.dtype == dtype
    np.testing.assert_array_equal(np.asarray(file), rows)


@examples(25)
@given(
    st.lists(
        st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 5),
)
def test_text_formats_preserve_every_double(tmp_path_factory, rows, size):
    folder = tmp_path_factory.mktemp("doubles")
    rows = np.array(rows)
    for name, writer in (("a.jsonl", write_lines), ("a.csv", write_csv), ("t.csv", write_text_csv)):
        writer(folder / name, rows)
        file = open_vectors(folder / name, "f*" if name == "a.csv" else "vector")
        np.testing.assert_array_equal(np.concatenate(list(file.blocks(size))), rows)


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_npz_files_are_read_while_decompressing(folder, order):
    np.savez("a.npz", X=np.asarray(X, order=order), y=np.arange(53), words=np.array(WORDS))
    file = open_vectors("a.npz")  # its only 2-d array
    np.testing.assert_array_equal(np.concatenate(list(file.blocks(10))), X)
    np.testing.assert_array_equal(np.asarray(file), X)
    np.testing.assert_array_equal(file.column("y"), np.arange(53))


def test_npy_files_are_memory_mapped(folder, monkeypatch):
    monkeypatch.setattr(antipodal.io.numpy_files, "TemporaryFile", None)
    np.save("x.npy", X)
    file = open_vectors("x.npy")
    rows = np.asarray(file)
    assert not rows.flags.owndata
    assert not rows.flags.writeable
    np.testing.assert_array_equal(rows, X)
    np.testing.assert_array_equal(file.take([2, 50]), X[[2, 50]])


def test_formats_are_recognised_by_the_first_bytes(folder):
    for name in ("a.parquet", "a.feather"):
        write(folder, name)
        os.rename(name, "nameless")
        np.testing.assert_array_equal(np.asarray(open_vectors("nameless")), X)
    np.save("x.npy", X)
    os.rename("x.npy", "nameless")
    np.testing.assert_array_equal(np.asarray(open_vectors("nameless")), X)


def test_codes_may_be_binary_of_fixed_or_variable_length(folder):
    codes = RNG.integers(0, 256, (53, 3), dtype=np.uint8)
    for kind in (pa.binary(3), pa.binary(), pa.large_binary()):
        column = pa.array([code.tobytes() for code in codes], kind)
        parquet.write_table(pa.table({"id": IDS, "code": column}), "c.parquet", row_group_size=20)
        file = open_vectors("c.parquet")
        assert file.dtype == np.uint8
        np.testing.assert_array_equal(np.concatenate(list(file.blocks(9))), codes)
    parquet.write_table(pa.table({"code": [b"abc", b"de"]}), "c.parquet")
    with pytest.raises(AntipodalError, match=r"row 0\b.*\b3\b.*row 1\b.*\b2\b"):
        np.asarray(open_vectors("c.parquet"))


def test_codes_in_text_formats_must_be_uint8(folder):
    codes = RNG.integers(0, 256, (53, 4), dtype=np.uint8)
    write_lines(folder / "c.jsonl", codes)
    write_csv(folder / "c.csv", codes)
    for source in ("c.jsonl", "c.csv:f*"):
        file = open_vectors(source, text_dtype=np.uint8)
        assert file.dtype == np.uint8
        np.testing.assert_array_equal(np.asarray(file), codes)
    for value in (256, 0.5, -1):
        (folder / "c.jsonl").write_text(f'{{"c": [1, 2]}}\n{{"c": [1, {value}]}}')
        (folder / "c.csv").write_text(f"a,b\n1,2\n1,{value}\n")
        with pytest.raises(AntipodalError, match=r"c\.jsonl\b.*line 2\b.*\buint8\b"):
            np.asarray(open_vectors("c.jsonl", text_dtype=np.uint8))
        with pytest.raises(AntipodalError, match=rf"c.csv: .*Row #3.*uint8.*'{value}'"):
            np.asarray(open_vectors("c.csv", text_dtype=np.uint8))


def test_an_arrow_tensor_is_a_vector(folder):
    kind = pa.fixed_shape_tensor(pa.float32(), [2, 2])
    storage = pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), 4)
    column = pa.ExtensionArray.from_storage(kind, storage)
    parquet.write_table(pa.table({"image": column}), "t.parquet", row_group_size=20)
    np.testing.assert_array_equal(np.asarray(open_vectors("t.parquet")), X)


# Columns


def test_columns_are_chosen_by_path_or_argument_and_may_be_patterns(folder):
    write_wide(folder / "wide.parquet")
    for column in ("f*", "f0,f1,f2,f3", "f[0-2], f3", ["f0", "f1", "f2", "f3"], ["f?"]):
        file = open_vectors("wide.parquet", column)
        assert file.vector_columns == ("f0", "f1", "f2", "f3")
        np.testing.assert_array_equal(np.asarray(file), X)
    np.testing.assert_array_equal(np.asarray(open_vectors("wide.parquet:f2,f0")), X[:, [2, 0]])
    np.testing.assert_array_equal(
        np.asarray(open_vectors("wide.parquet", leave_out=["id", "word"])), X
    )
    np.save("a:b.npy", X)  # a name with a colon
    np.testing.assert_array_equal(np.asarray(open_vectors("a:b.npy")), X)
    os.mkdir("data:1")
    write_parquet(folder / "data:1" / "a.parquet")
    np.testing.assert_array_equal(np.asarray(open_vectors("data:1:vector")), X)


def test_columns_of_a_csv_without_header_get_default_names(folder):
    np.savetxt("a.csv", X, delimiter=",")
    np.testing.assert_allclose(np.asarray(open_vectors("a.csv")), X, rtol=1e-7)
    np.testing.assert_allclose(np.asarray(open_vectors("a.csv:f3,f1")), X[:, [3, 1]], rtol=1e-7)


def test_numbers_and_strings_of_csv_are_distinguished(folder):
    (folder / "a.csv").write_text(
        'v,code,n,mixed,hot\n"[1 2]",007,1,2.5,"[0, 1]"\n"(3;4)",8,-2,,"[1, 1]"\n'
        '"[5,6]",9,3,true,"[1, 0]"\n'
    )
    file = open_vectors("a.csv:v")
    np.testing.assert_array_equal(np.asarray(file), [[1, 2], [3, 4], [5, 6]])
    assert file.column("code").tolist() == ["007", "8", "9"]  # 007 is not a number
    assert file.column("n").tolist() == [1, -2, 3]
    np.testing.assert_array_equal(file.column("hot"), [[0, 1], [1, 1], [1, 0]])
    records = list(file.records(["code", "n", "mixed"]))
    assert records[0] == {"code": "007", "n": 1, "mixed": 2.5}
    assert records[1] == {"code": 8, "n": -2, "mixed": None}
    assert records[2]["mixed"] is True


def test_dates_become_text_in_records(folder):
    times = pa.array(np.array(["2024-01-02T03:04:05", "2025-01-01"], "datetime64[s]"))
    parquet.write_table(pa.table({"v": [[1.0], [2.0]], "at": times}), "a.parquet")
    records = list(open_vectors("a.parquet").records(["at"]))
    assert records == [{"at": "2024-01-02T03:04:05"}, {"at": "2025-01-01T00:00:00"}]


def test_labels_are_read_from_a_column_of_any_file(folder):
    np.save("y.npy", IDS)
    np.savez("y.npz", a=IDS, b=HOT)
    for source in ("a.parquet", "a.feather", "a.jsonl", "a.csv:f*", "a.npz"):
        name = write(folder, source).partition(":")[0]
        np.testing.assert_array_equal(read_column(f"{name}:id"), IDS)
        assert read_column(f"{name}:word").tolist() == WORDS
        with pytest.raises(AntipodalError, match=r"several (columns|arrays) \(id, .*as .*:id"):
            read_column(name)
    np.testing.assert_array_equal(read_column("y.npy"), IDS)
    np.testing.assert_array_equal(read_column("y.npz:b"), HOT)
    (folder / "one.csv").write_text("y\n3\n4\n")
    assert read_column("one.csv").tolist() == [3, 4]


# Several files


@pytest.mark.parametrize("source", KINDS)
def test_files_of_a_folder_or_pattern_are_concatenated_by_name(folder, source):
    name, _, column = source.partition(":")
    os.mkdir("all")
    for part in ("2", "10", "1"):
        os.makedirs(f"all/{part}", exist_ok=True)
        KINDS[source](folder / "all" / part / name, X)
        np.save(f"all/{part}/_notes.npy", X)
        (folder / "all" / part / ".hidden").touch()
    suffix = f":{column}" if column else ""
    for path in ("all", "all/*/" + name, "all/**/" + name):
        file = open_vectors(path + suffix)
        assert file.n_rows == 159
        np.testing.assert_array_equal(np.asarray(file), np.tile(X, (3, 1)))
        np.testing.assert_array_equal(file.column("id"), np.tile(IDS, 3))
        np.testing.assert_array_equal(file.take([0, 60, 158]), X[[0, 7, 52]])
        assert len(list(file.records(["id"]))) == 159


def test_files_are_sorted_by_name(folder):
    for part, rows in (("b", X[:20]), ("a", X[20:30]), ("c", X[30:])):
        np.save(f"{part}.npy", rows)
    expected = np.concatenate([X[20:30], X[:20], X[30:]])
    np.testing.assert_array_equal(np.asarray(open_vectors("?.npy")), expected)


def test_files_without_rows_are_skipped(folder):
    write_lists(folder / "b.parquet")
    write_lists(folder / "a.parquet", X[:0])
    np.testing.assert_array_equal(np.asarray(open_vectors("*.parquet")), X)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (table(), table().rename_columns(["id", "words", "vector"]),
         r"'word'.*a\.parquet.*b\.parquet"),
        (table(), table(X.astype(np.float64)), r"'vector'.*float.*a\.parquet.*"
         r"double.*b\.parquet"),
        (pa.table({"v": [[1.0, 2.0]]}), pa.table({"v": [[1.0]]}), r"a\.parquet.*\b2\b.*"
         r"float64.*b\.parquet.*\b1\b"),
    ],
)  # fmt: skip
def test_files_with_different_columns_are_named(folder, first, second, message):
    parquet.write_table(first, "a.parquet")
    parquet.write_table(second, "b.parquet")
    with pytest.raises(AntipodalError, match=message):
        open_vectors("*.parquet")


def test_files_of_different_formats_are_named(folder):
    os.mkdir("all")
    write_parquet(folder / "all" / "a.parquet")
    write_lines(folder / "all" / "b.jsonl")
    with pytest.raises(AntipodalError, match=r"a\.parquet\b.*b\.jsonl\b"):
        open_vectors("all")
    with pytest.raises(AntipodalError, match=r"no-\*\.npy"):
        open_vectors("no-*.npy")
    os.mkdir("none")
    with pytest.raises(AntipodalError, match=r"\bnone\b"):
        open_vectors("none")


# Invalid files


def check_refused(source, message):
    with pytest.raises(AntipodalError, match=message) as caught:
        np.asarray(open_vectors(source))
    assert source.partition(":")[0] in str(caught.value)


LIST = pa.list_(pa.float32())


@pytest.mark.parametrize("name", ["a.parquet", "a.feather"])
@pytest.mark.parametrize(
    ("columns", "column", "message"),
    [
        ({"v": pa.array([[1, 2], None], LIST)}, "v", r"'v'.*\brow 1\b"),
        ({"v": pa.array([[1, 2], [3, None]], LIST)}, "v", r"'v'.*\brow 1\b"),
        ({"v": pa.array([[1, 2], [3]], LIST)}, "v", r"row 0\b.*\b2\b.*row 1\b.*\b1\b"),
        ({"v": pa.array([[], []], LIST)}, "v", "'v'.*empty"),
        ({"v": pa.array([], LIST)}, "v", "rows"),
        ({"v": ["a", "b"]}, "v", "'v'.*text"),
        ({"v": [["a"], ["b"]]}, "v", "'v'.*list<"),
        ({"v": [1.0, 2.0]}, "v", "'v'.*double"),
        ({"v": [1.0, 2.0], "w": ["a", "b"]}, "v,w", "'w'"),
        ({"v": [1.0, None], "w": [1, 2]}, "v,w", r"'v'.*\brow 1\b"),
        ({"v": [1.0, 2.0], "w": [1, 2]}, "v,v", "'v'"),
        ({"v": [[1.0]], "w": [[1.0]]}, None, r"\bv, w\b"),
        ({"v": [1.0], "w": ["a"]}, None, r"\bv\b.*double.*\bw\b.*text"),
        ({"v": [[1.0]], "w": ["a"]}, "x", r"'x'.*\bv, w\b"),
        ({f"c{i}": ["a"] for i in range(30)}, "x", r"\bc0\b.*\bc19\b.*\b10\b"),
    ],
)
def test_columns_without_valid_vectors_are_refused(folder, name, columns, column, message):
    data = pa.table(columns)
    (parquet.write_table if name == "a.parquet" else feather.write_feather)(data, name)
    check_refused(f"{name}:{column}" if column else name, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "empty"),
        (b"\n \n", "rows"),
        (b"[1, 2]\n", r"line 1\b.*\bJSON\b.*\[1, 2\]"),
        (b'{"v": [1, 2]}\n\n{"v": [1, 2]\n', r"line 3\b.*\bJSON\b"),
        (b'{"v": [1, 2]}\n{"v": [1, 2], "w": "\xff"}\n', r"line 2\b.*\bJSON\b.*utf-8"),
        (b'{"v": [1, 2]}\n{"v": ' + b"[" * 100_000, r"line 2\b.*\bJSON\b.*recursion"),
        (b'{"v": [1, 2]}\n{"v": [1, ' + b"9" * 5000 + b"]}", r"line 2\b.*\bJSON\b.*digits"),
        (b'{"v": [1, 2]}\n{"v": [1, ' + b"9" * 400 + b"]}", r"line 2\b.*9999"),
        (b'{"v": [1, 2]}\n{"v": null}', r"line 2\b.*\bNone\b"),
        (b'{"v": [1, 2]}\n{"v": "text"}', r"line 2\b.*'text'"),
        (b'{"v": [1, 2]}\n{"v": [1, null]}', r"line 2\b.*\bNone\b"),
        (b'{"v": [1, 2]}\n{"v": [1, "2"]}', r"line 2\b.*'2'"),
        (b'{"v": [1, 2]}\n{"v": [[1], [2]]}', r"line 2\b.*\[1\]"),
        (b'{"v": [1, 2]}\n{"v": [1, 2, 3]}', r"line 2\b.*\b2\b.*\b3\b"),
        (b'{"v": [1, 2]}\n{"w": [1, 2]}', r"line 2\b.*'v'.*\bw\b"),
        (b'{"w": 1}\n', r"'v'.*\bw\b"),
        (b'{"v": "text"}\n', "'v'.*text"),
        (b"[" * 100_000, r"line 1\b.*\bJSON\b.*recursion"),
    ],
)
def test_an_invalid_json_line_is_named(folder, text, message):
    (folder / "a.jsonl").write_bytes(text)
    check_refused("a.jsonl:v", message)


def test_integers_of_more_than_64_bits_are_numbers(folder):
    (folder / "a.jsonl").write_text('{"v": [1, 36893488147419103232]}')
    np.testing.assert_array_equal(np.asarray(open_vectors("a.jsonl")), [[1, 2.0**65]])


def test_missing_numbers_in_csv_labels_are_not_a_class(folder):
    for cells in (["0", "nan", "1"], ["0.0", "NaN", "1e0"]):
        Path("y.csv").write_text("\n".join(["y", *cells]))
        found = read_column("y.csv")
        np.testing.assert_array_equal(found, [0, np.nan, 1])
        with pytest.raises(ValueError, match=r"\b1 of 3\b"):
            known_labels(found)
    for cells in (["a", "nan", "b"], ["nan", "nan", "nan"]):
        Path("y.csv").write_text("\n".join(["y", *cells]))
        assert read_column("y.csv").tolist() == cells


def test_labels_in_json_lines_must_have_one_type(folder):
    for first, second, message in (
        (1, "a", "'y'.*'a'"),
        ("a", 1, r"'y'.*\b1\b"),
        (1, None, r"'y'.*\bNone\b"),
        (1, True, r"'y'.*\bTrue\b"),
        ([0, 1], [1], r"\b2\b.*\b1\b"),
    ):
        rows = [{"v": [1.0], "y": first}, {"v": [2.0], "y": second}]
        (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
        with pytest.raises(AntipodalError, match=rf"a\.jsonl\b.*line 2\b.*{message}"):
            open_vectors("a.jsonl:v").column("y")
    (folder / "a.jsonl").write_text('{"v": [1.0], "y": {"a": 1}}')
    with pytest.raises(AntipodalError, match=r"a\.jsonl\b.*line 1\b.*'y'"):
        open_vectors("a.jsonl:v").column("y")


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        (b"", "a", "empty"),
        (b"a,b\n", "a,b", r"\brows\b|'a'|'b'"),
        (b"a,b\n1,2\n3\n", "a,b", r"Row #3\b.*\b2\b.*\b1\b"),
        (b"a,b\n1,2\n3,x\n", "a,b", "'b'|Row #3: .*'x'"),
        (b"a,b\n1,2\n3,\n", "a,b", r"'b'.*\brow 1\b"),
        (b"a,a\n1,2\n", "a", "columns 'a'"),
        (b"a,b\n1,x\n", "b", "'b'.*text"),
        (b"a,b\n1,x\n", "c", r"'c'.*\ba, b\b"),
        (b'a,b\n"[1, 2]",x\n"[1, q]",y\n', "a", r"row 1\b.*'\[1, q\]'"),
        (b'a,b\n"[1, 2]",x\n"[1]",y\n', "a", r"row 0\b.*\b2\b.*row 1\b.*\b1\b"),
        (b'a,b\n"[1, 2]",x\n"[]",y\n', "a", r"row 1\b.*'\[\]'"),
        (b'a,b\n"[1, 2]",x\n,y\n', "a", r"'a'.*\brow 1\b"),
        (b'a,b\n"[1, 2]",x\n"[1, \xff]",y\n', "a", "Row #3: .*UTF8"),
    ],
)
def test_an_invalid_csv_row_is_named(folder, text, column, message):
    (folder / "a.csv").write_bytes(text)
    check_refused(f"a.csv:{column}", message)


@pytest.mark.parametrize(
    "source", ["a.parquet", "a.feather", "a.arrow", "a.ndjson.gz", "a.csv.gz:f*"]
)
def test_truncated_files_are_named(folder, source):
    name = write(folder, source).partition(":")[0]
    good = (folder / name).read_bytes()
    for length in range(0, len(good) - 9, max(1, len(good) // 40)):
        (folder / name).write_bytes(good[:length])
        check_refused(source, name)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.parquet", b"text", "b'text'.*b'PAR1'.*parquet"),
        ("a.parquet", b"PAR1" + bytes(50), r"a\.parquet\b.*parquet.*name"),
        ("nameless", b"PAR1" + bytes(50), r"nameless\b.*parquet.*bytes"),
        ("a.feather", b"FEA1" + bytes(50), "Feather"),
        ("a.arrow", b"nonsense" * 9, "Arrow.*name"),
        ("a.csv.gz", b"a,b\n1,2\n", r"\.gz.*gzip"),
        ("a.jsonl.gz", b"\x1f\x8b" + bytes(20), "JSON.*name"),
        ("a.xlsx", b"PK\x03\x04", "zip"),
        ("a.npy.gz", b"\x1f\x8b\x08", "gzip.*name"),
        ("a.txt", b"1 2 3\n", r"b'1 2 3.n'.*\.npy.*\.npz.*\.parquet"),
        ("empty", b"", "empty"),
        ("x.npy", b"text", r"x\.npy.*NumPy"),
    ],
)  # fmt: skip
def test_errors_name_the_assumed_format_and_its_evidence(folder, name, data, message):
    (folder / name).write_bytes(data)
    check_refused(name, message)


def test_an_arrow_file_with_offsets_out_of_range_is_refused(folder):
    lists = pa.array(X.tolist(), LIST)
    with pa.OSFile("a.arrow", "wb") as file, pa.ipc.new_file(file, table(X, lists).schema) as out:
        out.write_table(table(X, lists))
    data = bytearray((folder / "a.arrow").read_bytes())
    offsets = np.arange(0, 53 * 4 + 1, 4, dtype=np.int32).tobytes()
    place = data.index(offsets)
    data[place + 40 : place + 44] = np.int32(10**9).tobytes()
    (folder / "a.arrow").write_bytes(data)
    check_refused("a.arrow:vector", "a.arrow")


def test_arrays_of_other_shapes_and_missing_columns_are_refused(folder):
    np.save("y.npy", IDS)
    check_refused("y.npy", r"\(53,\)")
    np.save("w.npy", np.array([["a"]]))
    check_refused("w.npy", r"w\.npy.*<U1")
    np.save("x.npy", X)
    check_refused("x.npy:vector", "'vector'")
    with pytest.raises(AntipodalError, match=r"x\.npy\b.*'y'"):
        open_vectors("x.npy").column("y")
    np.savez("a.npz", X=X, y=IDS[:5])
    with pytest.raises(AntipodalError, match=r"'y'.*\b53\b.*\b5\b"):
        open_vectors("a.npz").column("y")


def test_a_file_that_grows_between_counting_and_reading_is_detected(folder):
    write_lines(folder / "a.jsonl")
    file = open_vectors("a.jsonl")
    assert len(file) == 53
    (folder / "a.jsonl").write_text((folder / "a.jsonl").read_text() * 2)
    with pytest.raises(AntipodalError, match=r"a\.jsonl\b.*\b53\b.*\b106\b"):
        list(file.blocks())


def test_rows_to_take_must_be_ascending_and_in_range(folder):
    file = open_vectors(write(folder, "a.parquet"))
    with pytest.raises(ValueError, match=r"\brows\b"):
        file.take([3, 2])
    for rows in ([-1, 2], [0, 53]):
        with pytest.raises(ValueError, match=r"\brows\b.*\b0\b.*\b52\b"):
            file.take(rows)
    assert file.take([]).shape == (0, 4)
    with pytest.raises(ValueError, match=r"\bmax_rows\b.*\b1\b.*\b0\b"):
        next(file.blocks(0))


def test_a_full_disk_is_named(folder, monkeypatch):
    def full():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(antipodal.io.numpy_files, "TemporaryFile", full)
    with pytest.raises(AntipodalError, match=r"a\.parquet\b.*No space.*TMPDIR"):
        np.asarray(open_vectors(write(folder, "a.parquet")))


@pytest.mark.parametrize("source", ["a.parquet", "a.feather", "a.csv:f*"])
def test_without_pyarrow_the_extra_is_named(folder, monkeypatch, source):
    write(folder, source)
    for name in [name for name in sys.modules if name.split(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "antipodal.io.tables", raising=False)
    with pytest.raises(AntipodalError, match=r"pyarrow.*\[arrow\]"):
        open_vectors(source)


def test_pyarrow_is_imported_only_for_files_that_need_it(folder):
    for source in ("a.jsonl", "a.npz"):
        write(folder, source)
    code = (
        "import sys, numpy as np\nfrom antipodal import open_vectors\n"
        "for name in ('a.jsonl', 'a.npz'): np.asarray(open_vectors(name))\n"
        "assert not {'pyarrow', 'torch', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Memory


def test_large_row_groups_are_read_in_pieces(folder):
    rows = RNG.standard_normal((20_000, 128), dtype=np.float32)  # 10 MB
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), 128)
    parquet.write_table(pa.table({"v": lists}), "a.parquet", row_group_size=20_000)
    code = (
        "import pyarrow as pa\nfrom antipodal import open_vectors\n"
        "rows = sum(len(block) for block in open_vectors('a.parquet').blocks(1000))\n"
        "print(rows, pa.default_memory_pool().max_memory())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    n_rows, peak = map(int, done.stdout.split())
    assert n_rows == 20_000
    assert peak < 6e6


def peak_of_reading(source, n_rows):
    if source == "a.jsonl":
        Path(source).write_text((json.dumps({"v": [0] * 4}) + "\n") * n_rows)
    else:
        (np.savez_compressed if source == "a.npz" else np.save)(source, np.zeros((n_rows, 4)))
    file = open_vectors(source)
    tracemalloc.start()
    try:
        assert sum(len(block) for block in file.blocks(500)) == n_rows
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("source", ["a.jsonl", "a.npz", "a.npy"])
def test_memory_does_not_depend_on_the_file_size(folder, source):
    peak_of_reading(source, 10)  # warm up: imports
    assert peak_of_reading(source, 8_000) < 1.1 * peak_of_reading(source, 2_000) + 2e4


# Hashers


@pytest.mark.parametrize("source", ["a.parquet", "a.csv:f*", "a.jsonl", "a.npz"])
def test_hashers_accept_vector_files(folder, source):
    write(folder, source)
    file = open_vectors(source)
    rows = np.asarray(file)
    hasher = LSH(16, random_state=0).fit(file)
    expected = LSH(16, random_state=0).fit(rows)
    np.testing.assert_array_equal(hasher.project(rows), expected.project(rows))
    codes = expected.encode(rows)
    np.testing.assert_array_equal(hasher.encode(file), codes)
    np.testing.assert_array_equal(np.concatenate(list(hasher.encode_blocks(file))), codes)


def test_a_row_that_is_not_finite_is_named_by_its_number_in_all_files(folder):
    rows = X.copy()
    rows[17, 2] = np.nan
    write_parquet(folder / "b.parquet", rows)
    write_parquet(folder / "a.parquet")
    hasher = LSH(8, random_state=0).fit(X)
    with pytest.raises(ValueError, match=r"\brow 70\b.*\bfinite\b"):
        list(hasher.encode_blocks(open_vectors("*.parquet")))
