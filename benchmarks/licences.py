"""Write docs/reference/licences.md: the licences of all packages that antipodal needs at run time.

python benchmarks/licences.py    # in an environment with all extras
"""

import tomllib
from importlib.metadata import metadata, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "licences.md"
INTRO = """# Licences

antipodal has the MIT licence. These packages are installed with it, directly or indirectly, without
extras (`core`) or with the named extras, except `compare`, `haystack`, `langchain` and
`llamaindex`. `python benchmarks/licences.py` writes the table from the metadata of the installed
packages.

Licences in bold are not permissive. **psycopg**, of the extra `postgres`, has the LGPL 3.0, and
certifi and parts of orjson have the MPL 2.0: programs of any licence may use them, but changed
copies of these packages must be distributed under the same licence.

| package | licence | installed with |
|---|---|---|
"""
SHORT = {
    "Apache Software License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "BSD License": "BSD",
    "MIT License": "MIT",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF",
}


# Of the rivals of the audit, and of projects that their users have installed already.
NOT_LISTED = {"compare", "haystack", "langchain", "llamaindex"}


def extras() -> dict[str, list[str]]:
    """Return the requirements of the project by extra, without those that are not listed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = {k: v for k, v in project["optional-dependencies"].items() if k not in NOT_LISTED}
    return {"core": project["dependencies"], **optional}


def packages(listed: list[str]) -> set[str]:
    """Return the names of the required packages and of those that they require."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in listed]
    while waiting:
        needed = waiting.pop()
        name = canonicalize_name(needed.name)
        if name == "antipodal":  # an extra that contains another
            waiting += [Requirement(text) for extra in needed.extras for text in extras()[extra]]
            continue
        key = f"{name}[{','.join(sorted(needed.extras))}]"
        if key in found:
            continue
        found.add(key)
        for text in requires(name) or []:
            inner = Requirement(text)
            chosen = needed.extras or {""}
            if inner.marker is None or any(inner.marker.evaluate({"extra": e}) for e in chosen):
                waiting.append(inner)
    return {key.partition("[")[0] for key in found}


def licence(name: str) -> str:
    """Return the licence that a package states, in bold if it is not permissive."""
    about = metadata(name)
    text = about.get("License-Expression") or ""
    if not text:
        marks = [c for c in about.get_all("Classifier") or [] if c.startswith("License ::")]
        names = [mark.rpartition(" :: ")[2] for mark in marks if mark.count("::") > 1]
        stated = (about.get("License") or "").strip()
        text = " or ".join(SHORT.get(n, n) for n in names) or stated.partition("\n")[0]
        text = SHORT.get(text, text)
    return f"**{text}**" if "GPL" in text or "MPL" in text else text


def page() -> str:
    """Return the page."""
    by_extra = {extra: packages(listed) for extra, listed in extras().items()}
    lines = []
    for name in sorted(set().union(*by_extra.values())):
        where = [extra for extra, names in by_extra.items() if name in names]
        where = ["core"] if "core" in where else where
        lines.append(f"| {name} | {licence(name)} | {', '.join(f'`{w}`' for w in where)} |")
    return INTRO + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
