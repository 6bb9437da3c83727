"""Figures: the values drawn are compared with values computed independently."""

import json
import re
import sys
from functools import partial
from statistics import mean, stdev

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from PIL import Image
from typer.testing import CliRunner

from antipodal import DeepLinf, datasets
from antipodal.bench import figures as drawing
from antipodal.bench.diagrams import iteration, siamese, unfolded
from antipodal.bench.figure_style import NETWORKS, looks, save_figure
from antipodal.bench.figures import (
    Values,
    antipodality,
    draw_figures,
    initialisation,
    loss_curves,
    neurons,
    one_image,
    radius_lookup,
    trade_off,
)
from antipodal.bench.runner import Benchmark
from antipodal.cli import app
from antipodal.errors import AntipodalError
from antipodal.evaluation.html import INK, METHOD_COLOURS
from antipodal.hashers.registry import make_hasher

DIGITS = datasets.digits()
SMALL = {"n_train": 20, "n_query": 10}
BENCHMARK = Benchmark(DIGITS, **SMALL)
METHODS = [
    "DeepLinf:n_epochs=15:n_unlabelled=0",
    "NNHash:n_epochs=15:n_unlabelled=0",
    "SparseHash:n_epochs=15:n_unlabelled=0",
]
N_BITS = 12
DIAGRAMS = {"iteration": iteration, "unfolded": unfolded, "siamese": siamese}
NAMES = [*DIAGRAMS, "neurons", "initialisation", "radius_lookup", "one_image", "antipodality"]


def ignore(line):
    pass


@pytest.fixture(scope="module")
def hashers():
    rows = BENCHMARK.draw(0)
    X, y = DIGITS.features[rows.train], DIGITS.labels[rows.train]
    return {method: make_hasher(method, N_BITS, 0).fit(X, y) for method in METHODS}


@pytest.fixture(scope="module")
def fitted():
    return drawing.representations(BENCHMARK, METHODS, N_BITS, 0, ignore)


@pytest.fixture
def short_training(monkeypatch):
    """Fewer pairs in the paper's setting, fewer epochs elsewhere."""
    paper = DeepLinf.paper

    def quick(n_bits, **options):
        return paper(n_bits, **options).set_params(training__n_pairs=300)

    monkeypatch.setattr(DeepLinf, "paper", quick)
    monkeypatch.setattr(drawing, "make_hasher", partial(make_hasher, settings=["n_epochs=2"]))


@pytest.fixture
def no_drawing(monkeypatch):
    """Files that contain only the name of their format: drawing takes a second each."""
    monkeypatch.setattr(
        Figure, "savefig", lambda self, file, format, **_: file.write(format.encode())
    )


def bounds(hasher):
    """λ of each bit where it is learned; tanh reaches 1."""
    blu = getattr(hasher.encoder_, "blu", None)
    return np.ones(N_BITS) if blu is None else np.exp(blu.log_threshold.numpy())


def records():
    rng = np.random.default_rng(0)
    cells = [(m, b, s) for m in (*NETWORKS, "LSH") for b in (64, 16, 32) for s in (0, 1, 2)]
    cells.remove(("NNHash", 32, 0))
    return [
        {
            "dataset": "toy",
            "method": m,
            "bits": b,
            "seed": s,
            "precision_r2": 50 + p,
            "recall_r2": 10 + r,
        }
        for (m, b, s), (p, r) in zip(cells, rng.standard_normal((len(cells), 2)), strict=True)
    ]


def test_neurons_are_drawn_as_their_formulas_say():
    panels = neurons().axes
    formulas = {
        "tanh": np.tanh,
        "ReLU": lambda u: np.maximum(u, 0),
        "SHeLU": lambda u: np.sign(u) * np.maximum(np.abs(u) - 1, 0),
        "HELU": lambda u: u * (np.abs(u) > 1),
        "BLU": lambda u: np.clip(u, -1, 1),
    }
    assert [axes.get_title() for axes in panels] == list(formulas)
    for axes in panels:
        u, f = axes.lines[-1].get_data()
        drawn = np.isfinite(u)
        assert (~drawn).sum() == (2 if axes.get_title() == "HELU" else 0)
        np.testing.assert_allclose(f[drawn], formulas[axes.get_title()](u[drawn]), atol=1e-12)
        assert np.isnan(f[~drawn]).all()


@pytest.mark.parametrize("K", [0, 1, 2, 4])
def test_the_unfolded_network_has_a_first_layer_and_k_stages(K):
    (axes,) = unfolded(K).axes
    texts = [text.get_text() for text in axes.texts]
    assert texts.count("BLU") == K + 1
    assert texts.count("+") == K
    assert [f"$S_{k}$" in texts and f"$b_{k}$" in texts for k in range(1, K + 1)] == [True] * K


def test_both_starts_are_trained_on_the_same_split_for_as_many_epochs(short_training):
    said = []
    curves = loss_curves(BENCHMARK, 8, [1], n_epochs=3, say=said.append)
    rows = DIGITS.split("paper", 1, **SMALL)
    by_hand = DeepLinf.paper(8, n_epochs=3, random_state=1)
    for (start, losses), init in zip(curves.items(), ("ksvd", "random"), strict=True):
        by_hand.set_params(init=init).fit(DIGITS.features[rows.train], DIGITS.labels[rows.train])
        np.testing.assert_allclose(losses, [by_hand.loss_curve_])
        assert any(start in line and "8 bits, seed 1" in line for line in said)


def test_losses_are_drawn_seed_by_seed_and_as_their_mean():
    rng = np.random.default_rng(0)
    curves = {start: list(rng.uniform(0.1, 2, (3, 4))) for start in ("one", "other")}
    (axes,) = initialisation(curves, n_bits=8, dataset="toy").axes
    for place, (start, losses) in enumerate(curves.items()):
        *seeds, average = axes.lines[4 * place : 4 * place + 4]
        np.testing.assert_array_equal([line.get_ydata() for line in seeds], losses)
        assert average.get_label() == start
        np.testing.assert_array_equal(average.get_xdata(), [1, 2, 3, 4])
        np.testing.assert_allclose(average.get_ydata(), np.mean(losses, axis=0))
    (axes,) = initialisation({k: v[:1] for k, v in curves.items()}, n_bits=8, dataset="toy").axes
    np.testing.assert_array_equal([line.get_ydata() for line in axes.lines], [
        curves["one"][0], curves["other"][0]
    ])  # fmt: skip


def test_radius_lookup_draws_means_and_deviations_of_the_three_networks():
    for axes, key in zip(radius_lookup(records()).axes, ("precision", "recall"), strict=True):
        drawn = [c for c in axes.containers if isinstance(c, ErrorbarContainer)]
        assert [container.get_label() for container in drawn] == list(NETWORKS)
        assert key in axes.get_ylabel()
        for container in drawn:
            line, _, (bars,) = container
            found = {
                bits: [
                    r[f"{key}_r2"] for r in records()
                    if (r["method"], r["bits"]) == (container.get_label(), bits)
                ]
                for bits in (16, 32, 64)
            }  # fmt: skip
            np.testing.assert_array_equal(line.get_xdata(), list(found))
            drawn_means = np.asarray(line.get_ydata(), float)
            np.testing.assert_allclose(drawn_means, [mean(v) for v in found.values()])
            heights = [np.ptp(segment[:, 1]) / 2 for segment in bars.get_segments()]
            np.testing.assert_allclose(heights, [stdev(v) for v in found.values()])


def test_radius_lookup_requires_two_code_lengths():
    others = [r for r in records() if r["method"] == "LSH"]
    one_length = [r for r in records() if r["bits"] == 16]
    for few, count in ((others, 0), (one_length, 1), ([], 0)):
        with pytest.raises(ValueError, match=rf"\bDeepLinf\b.*\b{count}\b"):
            radius_lookup(few)


def test_the_trade_off_has_one_curve_per_length_of_means_by_weight():
    runs = [
        {"dataset": "toy", "method": f"DeepLinf:similar_weight={w}", "bits": bits, "seed": seed,
         "recall_r2": 10 * w + seed, "precision_r2": 40 + bits + seed, "map": 50 - w * bits - seed}
        for w in (0.5, 0.1, 2) for bits in (64, 48) for seed in (0, 1)
    ]  # fmt: skip
    left, right = trade_off([*runs, *records()]).axes
    assert [line.get_label() for line in left.lines] == ["48 bits", "64 bits"]
    for bits, line, other in zip((48, 64), left.lines, right.lines, strict=True):
        np.testing.assert_allclose(line.get_xdata(), [1.5, 5.5, 20.5])
        np.testing.assert_allclose(line.get_ydata(), [49.5 - w * bits for w in (0.1, 0.5, 2)])
        np.testing.assert_allclose(other.get_ydata(), [40.5 + bits] * 3)
    assert [note.get_text() for note in left.texts] == ["0.1", "0.5", "2"] * 2
    with pytest.raises(ValueError, match=r"\bweights\b.*\b1\b"):
        trade_off([run for run in runs if "=2" in run["method"]])


def test_figures_name_the_dataset_and_the_trade_off_its_labels(fitted):
    def said(figure):
        titles = [legend.get_title().get_text() for legend in figure.legends]
        titles += [
            axes.get_legend().get_title().get_text() for axes in figure.axes if axes.get_legend()
        ]
        return " ".join([figure.get_suptitle(), *titles])

    weights = [
        {"dataset": "toy", "method": f"DeepLinf:similar_weight={w}", "bits": 16, "seed": 0,
         "recall_r2": w, "precision_r2": w, "map": w}
        for w in (1, 2)
    ]  # fmt: skip
    drawn = dict(zip(NAMES, draw_all(fitted), strict=True))
    figures = [f for name, f in drawn.items() if name not in (*DIAGRAMS, "neurons")]
    figures.append(trade_off(weights))
    assert all("toy" in said(figure) for figure in figures)
    assert "similar_weight" in said(figures[-1])
    blue = METHOD_COLOURS["DeepLinf"]
    assert {line.get_color() for axes in figures[-1].axes for line in axes.lines} == {blue}


def test_methods_have_the_same_colours_as_in_reports():
    names = ["DeepLinf:n_stages=4", "NNHash", "LinfHash.quick", "ITQ", "Mine"]
    colours = [look.colour for look in looks(names).values()]
    assert colours == [
        *(METHOD_COLOURS[name] for name in ("DeepLinf", "NNHash", "LinfHash", "ITQ")), INK
    ]  # fmt: skip
    assert [look.line for look in looks(["ITQ", "ITQ:n_iter=1", "LSH"]).values()] == [
        "-",
        "--",
        "-",
    ]


def test_settings_of_one_network_share_its_colour_and_differ_in_their_lines():
    variant = [
        r | {"method": "DeepLinf:n_stages=4"} for r in records() if r["method"] == "DeepLinf"
    ]
    lines = {c.get_label(): c[0] for c in radius_lookup(records() + variant).axes[0].containers}
    plain, changed = lines["DeepLinf"], lines["DeepLinf:n_stages=4"]
    assert plain.get_color() == changed.get_color() != lines["NNHash"].get_color()
    assert plain.get_linestyle() != changed.get_linestyle()


def test_the_networks_colours_are_three_greys_in_print():
    greys = [np.dot(to_rgb(look.colour), [0.299, 0.587, 0.114]) for look in NETWORKS.values()]
    assert np.diff(sorted(greys)).min() > 0.15
    assert max(greys) < 0.8  # visible on white


def test_one_image_shows_values_bits_and_quantisation_error_of_a_query(hashers, fitted):
    row = DIGITS.split("paper", 0, **SMALL).query[0]
    picture, *panels = one_image(fitted[0], DIGITS.images[row], dataset="toy").axes
    np.testing.assert_array_equal(picture.images[0].get_array(), DIGITS.images[row])
    for bars, strip, (method, hasher) in zip(
        panels[::2], panels[1::2], hashers.items(), strict=True
    ):
        assert bars.get_title(loc="left") == method
        z = hasher.project(DIGITS.features[[row]])[0].astype(float)
        heights = [bar.get_height() for bar in bars.patches]
        np.testing.assert_allclose(heights, z / bounds(hasher), atol=1e-5)
        assert np.abs(heights).max() <= 1
        shades = [to_rgb(bar.get_facecolor()) == (0, 0, 0) for bar in strip.patches]
        np.testing.assert_array_equal(shades, hasher.transform(DIGITS.features[[row]])[0])
        gap = z / np.abs(z).mean() - np.where(z > 0, 1, -1)
        error = 100 * np.linalg.norm(gap) / np.sqrt(N_BITS)
        assert bars.get_title(loc="right").endswith(f" {error:.0f} %")
    assert len(one_image(fitted[0], dataset="toy").axes) == 2 * len(METHODS)


def test_histograms_count_every_value_of_the_database_once(hashers, fitted):
    database = DIGITS.features[DIGITS.split("paper", 0, **SMALL).database]
    for axes, (method, hasher) in zip(
        antipodality(fitted[1], dataset="toy").axes, hashers.items(), strict=True
    ):
        assert axes.get_title() == method
        (steps,) = (patch for patch in axes.patches if isinstance(patch, StepPatch))
        share, edges, _ = steps.get_data()
        counts = share / 100 * len(database) * N_BITS
        assert counts.sum() == pytest.approx(len(database) * N_BITS)
        ratio = np.abs(hasher.project(database)) / bounds(hasher)
        for low, high, count in zip(edges[1:-2], edges[2:-1], counts[1:-1], strict=True):
            by_hand = ((ratio >= low) & (ratio < high)).sum()
            assert count == pytest.approx(by_hand, abs=3)  # rounding at the edges
        assert axes.texts[0].get_text() == f"{100 * (ratio >= 0.95).mean():.0f} % ≥ 0.95"


def test_rows_of_a_large_database_are_sampled(monkeypatch, hashers):
    monkeypatch.setattr(drawing, "MAX_ROWS", 30)
    _, database = drawing.representations(BENCHMARK, METHODS[:1], N_BITS, 0, ignore)
    (values,) = database.values()
    rows = BENCHMARK.draw(0).database
    everything = hashers[METHODS[0]].project(DIGITS.features[rows])
    gaps = np.abs(everything[None] - values.Z[:, None]).max(axis=2)
    assert values.Z.shape == (30, N_BITS)
    assert (gaps.min(axis=1) < 1e-5).all()
    assert len(set(gaps.argmin(axis=1))) == 30


def test_mirrored_runs_show_the_mean_of_both_views():
    data = DIGITS.with_gist(orientations=(4,), grid=2)
    benchmark = Benchmark(data, **SMALL, mirrored=True)
    query, _ = drawing.representations(benchmark, METHODS[:1], N_BITS, 0, ignore)
    rows, X = benchmark.draw(0), data.features
    both = np.concatenate([X[rows.train], X[rows.train][:, data.mirror]])
    hasher = make_hasher(METHODS[0], N_BITS, 0).fit(both, np.tile(data.labels[rows.train], 2))
    views = np.stack([X[rows.query[0]], X[rows.query[0]][data.mirror]])
    np.testing.assert_allclose(
        query[METHODS[0]].Z[0], hasher.project(views).mean(axis=0), atol=1e-6
    )


def draw_all(fitted):
    curves = {"one": [np.array([2.0, 1.0])], "other": [np.array([3.0, 0.5])]}
    return [
        *(draw() for draw in DIAGRAMS.values()), neurons(),
        initialisation(curves, n_bits=8, dataset="toy"), radius_lookup(records()),
        one_image(fitted[0], DIGITS.images[0], dataset="toy"),
        antipodality(fitted[1], dataset="toy"),
    ]  # fmt: skip


def test_files_are_reproducible_and_independent_of_user_settings(tmp_path, fitted, monkeypatch):
    savefig = Figure.savefig

    def save(self, file, format, **options):
        """Skip the PNG files but one, which show the same drawings as the SVG files."""
        if format == "svg" or "neurons" in file.name:
            savefig(self, file, format=format, **options)

    monkeypatch.setattr(Figure, "savefig", save)
    folders = [tmp_path / "once", tmp_path / "again"]
    for folder, width in zip(folders, (1.5, 9.0), strict=True):
        folder.mkdir()
        with mpl.rc_context({"lines.linewidth": width, "axes.grid": width > 2}):
            for name, figure in zip(NAMES, draw_all(fitted), strict=True):
                save_figure(figure, folder, name)
            assert mpl.rcParams["lines.linewidth"] == width
    assert len(list(folders[0].iterdir())) == 2 * len(NAMES)
    for file in folders[0].iterdir():
        assert file.read_bytes() == (folders[1] / file.name).read_bytes(), file.name
    assert "<dc:date>" not in (folders[0] / "neurons.svg").read_text()
    with Image.open(folders[0] / "neurons.png") as png:
        assert png.size[0] == 7 * 200
        assert png.info["dpi"] == pytest.approx((200, 200), abs=0.1)


def test_figures_are_not_registered_with_pyplot():
    assert neurons().canvas.manager is None


# The command.


def bench(*arguments):
    command = ["bench", "digits", "--train", 20, "--queries", 10, "--processes", 1, *arguments]
    return CliRunner().invoke(app, list(map(str, command)))


@pytest.mark.usefixtures("short_training", "no_drawing")
def test_the_command_writes_all_figures_and_prints_records_only(tmp_path):
    folder = tmp_path / "deep" / "figures"
    options = ("--methods", METHODS[1], "--bits", "12,8", "--out", tmp_path / "r", "--json")
    done = bench(*options, "--figures", folder)
    assert done.exit_code == 0, done.output
    expected = {f"{name}.{kind}" for name in NAMES for kind in ("svg", "png")}
    assert {path.name for path in folder.iterdir()} == expected
    assert [json.loads(line)["bits"] for line in done.stdout.splitlines()] == [12, 8]
    for line in (
        r"\bDeepLinf\.paper\b.*\brandom\b.*\b12 bits, seed 0$",
        *(rf" {method}, 12 bits, seed 0$" for method in (*NETWORKS, METHODS[1])),
        rf"\bone_image\b.*{folder / 'one_image.svg'}.*{folder / 'one_image.png'}$",
    ):
        assert len(re.findall(line, done.stderr, re.MULTILINE)) == 1, line


@pytest.mark.usefixtures("no_drawing")
def test_figures_that_cannot_be_drawn_are_logged_and_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(drawing, "DEFAULT_METHODS", ["NNHash:n_epochs=2"])
    wild = "DeepLinf:optimizer=sgd:learning_rate=1e20"
    said = []
    draw_figures(
        BENCHMARK, tmp_path, methods=["LSH", wild], lengths=[8], seeds=[0], records=[],
        n_epochs=0, say=said.append,
    )  # fmt: skip
    assert {path.stem for path in tmp_path.iterdir()} == {
        *DIAGRAMS, "neurons", "one_image", "antipodality",
    }  # fmt: skip
    text = "\n".join(said)
    for names in (
        r"\bradius_lookup\b.*\bDeepLinf\b",
        r"\btrade_off\b.*\bweights\b",
        r"\binitialisation\b.*\bn_epochs\b.*\b1\b",
        rf"^{re.escape(wild)} .*\bloss\b",
    ):
        assert len(re.findall(names, text, re.MULTILINE)) == 1, names
    fitted = re.findall(r"(\S+), 8 bits, seed 0$", text, re.MULTILINE)
    assert {"NNHash:n_epochs=2", wild} <= set(fitted)
    assert "LSH" not in fitted
    with pytest.raises(ValueError, match="network"):
        one_image({}, dataset="toy")


def test_without_matplotlib_nothing_is_run(tmp_path, monkeypatch):
    for module in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, module, None)
    folder, records = tmp_path / "figures", tmp_path / "r"
    done = bench("--methods", "LSH", "--bits", 8, "--out", records, "--figures", folder)
    assert isinstance(done.exception, AntipodalError)
    assert "pip install '.[plots]'" in str(done.exception)
    assert not records.exists()
    assert not folder.exists()
    assert bench("--methods", "LSH", "--bits", 8, "--out", records).exit_code == 0


def test_an_invalid_folder_is_reported_before_the_run(tmp_path):
    (tmp_path / "file").write_text("mine")
    done = bench("--methods", "LSH", "--out", tmp_path / "r", "--figures", tmp_path / "file")
    assert isinstance(done.exception, AntipodalError)
    assert str(tmp_path / "file") in str(done.exception)
    assert not (tmp_path / "r").exists()


def test_scaled_values_are_within_1_despite_rounding():
    bound = np.float32([0.1, 0.3, 0.7])
    values = Values(np.float32([[0.1, -0.3, 0.7000001]]), bound)
    assert np.abs(values.scaled).max() <= 1
