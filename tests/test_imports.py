"""The direction of imports: each module knows only what stands before it."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import antipodal

ROOT = Path(antipodal.__file__).parent

# Each room may import from the rooms to its left. What stands beside each other in one entry
# may import from each other, as long as no two modules do so both ways.
ORDER = [
    "errors",
    "checks codes threads",
    "storage",
    "exporting reading",
    "descent neurons polish pursuit scaling",
    "admm dictionary solver",
    "encoders labels pairs triplets",
    "batches",
    "centres siamese",
    "features",
    "hashers",
    "evaluation",
    "index",
    "stores",
    "datasets",
    "auditing benchmark bulk service",
    "cli",
    "__main__",
]
PLACE = {room: place for place, rooms in enumerate(ORDER) for room in rooms.split()}


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name: path for path in sorted(ROOT.rglob("*.py")) if (name := module_name(path))}


def imported(text):
    """Return the modules of this package that a file imports, anywhere in it and in any way."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("antipodal"):
            assert node.level == 0
            module = node.module.removeprefix("antipodal").lstrip(".")
            for alias in node.names:
                inner = f"{module}.{alias.name}".lstrip(".")
                found.add(inner if inner in FILES else module or home(alias.name))
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("antipodal").lstrip(".")
                for alias in node.names
                if alias.name.split(".")[0] == "antipodal"
            }
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "antipodal":
            found.add(home(node.attr))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            name = getattr(node.args[0], "value", "")
            found.add(name.removeprefix("antipodal.") if name.startswith("antipodal.") else "")
    return found - {""}  # the package itself: its version


def home(name):
    """Return the module that a public name of the package is imported from, when it is used."""
    return name if name in FILES else antipodal._HOME.get(name, "")


GRAPH = {name: imported(path.read_text()) for name, path in FILES.items()}


def test_every_way_of_importing_is_seen():
    for text, module in {
        "from antipodal.stores.where import parse_where": "stores.where",
        "from antipodal import datasets": "datasets",
        "def f():\n    from antipodal import load": "hashers",
        "import antipodal\nantipodal.load(path)": "hashers",
        "import antipodal.index.scan": "index.scan",
        "importlib.import_module('antipodal.service.server')": "service.server",
    }.items():
        assert imported(text) == {module}, text
    assert imported("import antipodal\nantipodal.__version__\nimport_module('faiss')") == set()


def test_no_module_imports_itself_by_a_detour_lazy_imports_included():
    order = list(TopologicalSorter(GRAPH).static_order())  # CycleError names the cycle
    assert set(order) == set(FILES)


def test_imports_point_one_way_between_rooms():
    wrong = {
        f"{name} imports {other}"
        for name, others in GRAPH.items()
        for other in others
        if PLACE[other.split(".")[0]] > PLACE[name.split(".")[0]]
        or {name.split(".")[0], other.split(".")[0]} == {"benchmark", "service"}
    }
    assert not wrong


def test_no_two_modules_of_the_library_have_one_name():
    # Commands are named as what they call.
    names = [name.split(".")[-1] for name in FILES if not name.startswith("cli.")]
    assert {name for name in names if names.count(name) > 1} == set()


def test_no_two_public_classes_have_one_name():
    classes = [
        node.name
        for path in FILES.values()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert {name for name in classes if classes.count(name) > 1} == set()
