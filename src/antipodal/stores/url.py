"""Store URLs: parsing, and display without secrets."""

import os
import re
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from urllib.parse import parse_qsl, unquote, urlsplit

_EXAMPLES = (
    "sqlite:///codes.db, postgresql://user@host/database, milvus:///codes.db, "
    "milvus+http://host:19530"
)
_OPTIONS = {
    "sqlite": {"timeout"},
    "postgresql": {"table", "schema"},
    "milvus": {"collection"},
    "milvus+http": {"collection", "token"},
    "milvus+https": {"collection", "token"},
}
_FILES = ("sqlite", "milvus")
_SHOWN_OPTIONS = {"timeout", "table", "schema", "collection"}
_HARMLESS_OPTIONS = {"host", "hostaddr", "port", "dbname", "user", "sslmode", "connect_timeout"}
_OPTION = re.compile(r"[A-Za-z_]+=.*")
_PLAIN_NAME = re.compile(r"[\w./~+ -]*")  # a path, not a list of options or user:password@host
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:@\[\]]*)(:[0-9]{0,5})?")
_ESCAPED = re.compile(r"(?:[^%]|%[0-9A-Fa-f]{2})*")


@dataclass(frozen=True)
class Address:
    """A parsed URL: the address for the engine, and the options of the store.

    `shown` is for messages: neither it nor the `repr` contains passwords or tokens.
    """

    scheme: str
    target: str = field(repr=False)
    options: dict[str, str] = field(repr=False)
    shown: str
    secrets: tuple[str, ...] = field(default=(), repr=False)
    read_only: bool = False

    def without_secrets(self, text: str) -> str:
        """Return a message of an engine with secrets replaced by …."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, "…")
        return text


def shown_url(url: str) -> str:
    """Return the URL of a store without secrets, even if it is malformed.

    Users, passwords, tokens and engine options are omitted. If a password cannot be located, only
    the scheme is returned.

    Examples
    --------
    >>> shown_url("postgresql://user:secret@host:5432/db?table=codes&password=secret")
    'postgresql://host:5432/db?table=codes'
    >>> shown_url("postgress://user:sec/ret@host")
    'postgress://…'
    """
    scheme, colon, rest = url.partition("://")
    if not colon:
        return url if _PLAIN_NAME.fullmatch(url) else "…"
    if not re.fullmatch(r"[A-Za-z0-9+.-]*", scheme):
        return "…"
    if not (scheme in _FILES and rest.startswith("/")):
        user, _, rest = rest.rpartition("@")
        if re.search(r"[/?#]", user):
            return f"{scheme}://…"  # a password with /, ? or #, or an option with @
    place, _, query = rest.partition("#")[0].partition("?")
    host, slash, path = place.partition("/")
    if not all(map(_HOST.fullmatch, host.split(","))):
        return f"{scheme}://…"  # a port that is not a number may be a password
    options = [
        part for part in query.split("&") if part and part.partition("=")[0] in _SHOWN_OPTIONS
    ]
    return f"{scheme}://{host}{slash}{path}" + ("?" if options else "") + "&".join(options)


def parse_url(url: str) -> Address:
    """Parse the URL of a store, or raise ValueError with examples of valid URLs."""
    given, colon, rest = url.partition("://")
    scheme = {"postgres": "postgresql"}.get(given, given)
    if not colon or scheme not in _OPTIONS:
        raise ValueError(_unknown(url, given if colon else ""))
    try:
        parts = urlsplit(url)
    except ValueError:  # whose message may contain the whole URL
        raise ValueError(
            f"{shown_url(url)} is not a valid URL: escape special characters as %XX"
        ) from None
    if not all(map(_OPTION.fullmatch, filter(None, parts.query.split("&")))):
        raise ValueError(f"options of {shown_url(url)} must be written as ?name=value&name=value")
    ours: dict[str, str] = {}
    others: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in _OPTIONS[scheme]:
            ours[name] = value
        else:
            others.append((name, value))
    if others and scheme != "postgresql":
        raise ValueError(
            f"{others[0][0]!r} is not an option of {scheme} stores: expected one of "
            f"{', '.join(sorted(_OPTIONS[scheme]))}"
        )
    if scheme in _FILES:
        return _file(url, scheme, ours)
    user, _, host = parts.netloc.rpartition("@")
    _check_server(url, rest, user, host)
    secrets = _secrets(user, [*others, *ours.items()])
    if scheme == "postgresql":
        kept = [part for part in parts.query.split("&") if part.split("=")[0] not in ours]
        shown = f"postgresql://{host}{parts.path}"
        target = f"postgresql://{parts.netloc}{parts.path}?{'&'.join(kept)}".rstrip("?")
        return Address(scheme, target, ours, shown, secrets)
    if not parts.hostname or parts.path not in ("", "/"):
        raise ValueError(
            f"{shown_url(url)} must be {scheme}://host:port, optionally with ?collection=name"
        )
    if user:
        ours.setdefault("token", unquote(user))  # not in the target, which the client may log
    target = f"{scheme.removeprefix('milvus+')}://{host}"
    return Address(scheme, target, ours, f"{scheme}://{host}", secrets)


def place_address(place: str | os.PathLike[str], *, read_only: bool = False) -> Address:
    """Return the address of a collection: a URL of `parse_url`, or the path of a SQLite file."""
    text = os.fspath(place)
    if "://" in text:
        return replace(parse_url(text), read_only=read_only)
    if not text or "\0" in text:
        raise ValueError("the path of a collection must not be empty")
    return Address("sqlite", text, {}, text, read_only=read_only)


def _unknown(url: str, scheme: str) -> str:
    likely = get_close_matches(scheme, _OPTIONS, 1)
    if likely:
        hint = f" Did you mean {likely[0]}://?"
    elif not scheme and "=" not in url and _PLAIN_NAME.fullmatch(url):
        hint = f" For a file, use sqlite:///{url}"
    else:
        hint = ""
    return f"{shown_url(url)} is not the URL of a store, such as {_EXAMPLES}.{hint}"


def _check_server(url: str, rest: str, user: str, host: str) -> None:
    """Raise ValueError for URLs that an engine may parse differently, or quote in an error."""
    before_query = rest.partition("?")[0]
    misplaced = "@" in before_query.partition("/")[2] or "@" in user or "#" in rest
    if misplaced or not _ESCAPED.fullmatch(user):
        raise ValueError(
            f"{shown_url(url)} is not a valid URL. Escape these characters in user names and "
            "passwords: @ as %40, / as %2F, ? as %3F, # as %23, % as %25"
        )
    if not all(map(_HOST.fullmatch, host.split(","))):
        raise ValueError(
            f"the port of {shown_url(url)} must be a number, as in host:5432. "
            "Is @host missing after a password?"
        )


def _secrets(user: str, options: list[tuple[str, str]]) -> tuple[str, ...]:
    """Return the secrets of a URL, both escaped and unescaped."""
    password = user.partition(":")[2]
    shown = _SHOWN_OPTIONS | _HARMLESS_OPTIONS
    hidden = [value for name, value in options if name not in shown]
    return tuple({word for word in (password, unquote(password), *hidden) if word})


def _file(url: str, scheme: str, options: dict[str, str]) -> Address:
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]  # scheme:///relative, scheme:////absolute
    if parts.netloc or parts.fragment or not path or path == ":memory:" or "\0" in path:
        raise ValueError(
            f"{shown_url(url)} must name a file: {scheme}:///relative/path.db or "
            f"{scheme}:////absolute/path.db, with # escaped as %23 and ? as %3F"
        )
    return Address(scheme, path, options, path)
