"""Which models and stores one service has, by name: as options say it, or a file.

The file is a JSON object, a mount per name, with the whole paths of its files:

    {"articles": {"model": "/data/v2.antipodal", "store": "sqlite:////data/v2.db",
                  "keys": "/run/secrets/articles"}}

`keys`, `images` and `scores` may be left out. A service follows the file: whoever writes it again
(whole, as `antipodal switch` does) replaces a model and its store while the service runs.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from antipodal.errors import AntipodalError
from antipodal.io.atomic import alone_in, replacing

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
OUR_NAMES = frozenset(("docs", "healthz", "metrics", "readyz", "static", "v1"))  # at the root


@dataclass(frozen=True)
class Mount:
    """A model and the store of its codes, with what else is particular to them."""

    model: Path
    store: str = field(repr=False)  # it may hold a password
    keys: Path | None = None
    images: str | None = None
    scores: Path | None = None

    @classmethod
    def from_fields(cls, fields: Any) -> Self:
        """Make one of what `fields` returned; raise ValueError saying what is wrong with it."""
        if not isinstance(fields, dict) or not {"model", "store"} <= fields.keys():
            raise ValueError('it must be an object with "model" and "store"')
        unknown = fields.keys() - cls.__dataclass_fields__.keys()
        if unknown:
            raise ValueError(f"it has the unknown field {min(unknown)!r}")
        if not all(isinstance(value, str) for value in fields.values()):
            raise ValueError("its fields must be text")
        if not Path(fields["model"]).is_absolute():
            raise ValueError("its files must be named by their whole paths")
        paths = {name: Path(fields[name]) for name in ("model", "keys", "scores") if name in fields}
        return cls(**fields | paths)

    def fields(self) -> dict[str, str]:
        """Return the fields that are set, as JSON has them, paths from the root."""
        return {
            name: str(value.absolute() if isinstance(value, Path) else value)
            for name, value in vars(self).items()
            if value is not None
        }


def parse_mount(text: str) -> tuple[str, Mount]:
    """Read `NAME=MODEL,STORE`; a store in a file beside the program gets its whole path."""
    name, equals, rest = text.partition("=")
    model, comma, store = rest.partition(",")
    if not (equals and comma and model and store):
        raise ValueError(
            "a mount is NAME=MODEL,STORE, such as articles=model.antipodal,sqlite:///codes.db"
        )
    check_name(name)
    scheme, colon, path = store.partition(":///")
    if scheme in ("sqlite", "milvus") and colon and not path.startswith("/"):
        store = f"{scheme}:///{quote(os.getcwd())}/{path}"
    return name, Mount(Path(model).absolute(), store)


def check_name(name: str) -> None:
    """Refuse what cannot be the beginning of a path, or is one of the service's own."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"a mount is named by a-z, 0-9, - and _, at most 63 of them: got {name[:70]!r}"
        )
    if name in OUR_NAMES:
        raise ValueError(f"a mount must not be named {name}: the service has a route of that name")


def read_mounts(path: Path) -> dict[str, Mount]:
    """Read the file; what is wrong with it is named, and nothing of it is used."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(whole, dict):
            raise ValueError("it must be one JSON object")
        for name, fields in whole.items():
            check_name(name)
            try:
                whole[name] = Mount.from_fields(fields)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
    except OSError as error:
        raise AntipodalError(f"cannot read the mounts in {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise AntipodalError(f"cannot read the mounts in {path}: {error}") from None
    return whole


@contextmanager
def changing_mounts(path: Path) -> Iterator[dict[str, Mount]]:
    """Give the mounts to change, and write them when the block ends well; others wait meanwhile."""
    with alone_in(path.absolute().parent):
        mounts = read_mounts(path) if path.exists() else {}
        yield mounts
        write_mounts(path, mounts)


def write_mounts(path: Path, mounts: Mapping[str, Mount]) -> None:
    """Write the file whole; only its owner may read it, for stores may have passwords."""
    text = json.dumps({name: mount.fields() for name, mount in mounts.items()}, indent=1)
    with suppress(OSError):  # of one that is there the mode is kept; what else is wrong shows below
        new = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(new, b"{}\n")
        os.close(new)
    with replacing(path) as file:
        file.write(text.encode() + b"\n")
