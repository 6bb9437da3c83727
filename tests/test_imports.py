"""The direction of imports: each package imports only packages below it, without cycles."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import antipodal

ROOT = Path(antipodal.__file__).parent

# A package may import from the lines above its own, and from packages on the same line as long
# as no two modules import each other.
ORDER = [
    "errors",
    "codes threads validation",
    "http_transport",
    "io",
    "paper",
    "hashers baselines",
    "embedding features",
    "index",
    "stores",
    "datasets evaluation",
    "client collection",
    "bench bulk integrations service",
    "cli",
    "__main__",
]
PLACE = {package: place for place, line in enumerate(ORDER) for package in line.split()}


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name: path for path in sorted(ROOT.rglob("*.py")) if (name := module_name(path))}
PUBLIC = {
    alias.name: node.module or alias.name
    for node in ast.parse((ROOT / "__init__.pyi").read_text()).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}


def imported(text):
    """Return the modules of this package that a source text imports, lazily or not."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("antipodal"):
            assert node.level == 0
            module = node.module.removeprefix("antipodal").lstrip(".")
            for alias in node.names:
                inner = f"{module}.{alias.name}".lstrip(".")
                found.add(inner if inner in FILES else module or PUBLIC.get(alias.name, ""))
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("antipodal").lstrip(".")
                for alias in node.names
                if alias.name.split(".")[0] == "antipodal"
            }
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "antipodal":
            found.add(PUBLIC.get(node.attr, ""))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            name = getattr(node.args[0], "value", "")
            if isinstance(name, str) and name.startswith("antipodal."):
                found.add(name.removeprefix("antipodal."))
    return found - {""}  # the package itself: its version


GRAPH = {name: imported(path.read_text()) for name, path in FILES.items()}


def test_all_forms_of_import_are_detected():
    for text, module in {
        "from antipodal.stores.filters import parse_where": "stores.filters",
        "from antipodal import datasets": "datasets",
        "def f():\n    from antipodal import load": "hashers.registry",
        "import antipodal\nantipodal.load(path)": "hashers.registry",
        "import antipodal.index.scan": "index.scan",
        "importlib.import_module('antipodal.service.server')": "service.server",
    }.items():
        assert imported(text) == {module}, text
    assert imported("import antipodal\nantipodal.__version__\nimport_module('faiss')") == set()


def test_there_are_no_import_cycles_lazy_imports_included():
    order = list(TopologicalSorter(GRAPH).static_order())  # CycleError names the cycle
    assert set(order) == set(FILES)


def test_imports_point_downwards():
    wrong = {
        f"{name} imports {other}"
        for name, others in GRAPH.items()
        for other in others
        if PLACE[other.split(".")[0]] > PLACE[name.split(".")[0]]
        or {name.split(".")[0], other.split(".")[0]} == {"bench", "service"}
    }
    assert not wrong
