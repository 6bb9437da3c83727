"""API keys: who may read, who may write.

A key file has one key per line, with its role. A comment is what follows a # that begins the line
or has a blank before it, so that a key may hold a #:

    read  3k2…    # the web site
    write 9xQ…    # the nightly import; may read as well

Only digests of the keys are kept, so that no log, error or core dump of ours shows one.
"""

import hashlib
import hmac
import os
import re
from pathlib import Path
from typing import Literal, Self, TypeAlias

from antipodal.errors import AntipodalError
from antipodal.service.guesses import Guesses

Role: TypeAlias = Literal["read", "write"]
VARIABLE = "ANTIPODAL_KEYS"
_LEAST = 16  # characters: what is shorter can be guessed
_COMMENT = re.compile(r"(^|\s)#.*")
_LINE = re.compile(r"(read|write)[ \t]+([\x21-\x7e]+)")


class Keys:
    """Known keys, by their digests, and who has guessed at them."""

    def __init__(self, roles: dict[bytes, Role]) -> None:
        self._roles = roles
        self.guesses = Guesses()

    def __len__(self) -> int:
        return len(self._roles)

    @classmethod
    def parse(cls, text: str, source: str) -> Self:
        """Read lines of role and key; errors name the line, never what is in it."""
        roles: dict[bytes, Role] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            content = _COMMENT.sub("", line).strip()
            if not content:
                continue
            match = _LINE.fullmatch(content)
            if match is None:
                raise AntipodalError(
                    f"{source}, line {number} must be `read KEY` or `write KEY`, the key in "
                    "printable ASCII without spaces"
                )
            if len(match[2]) < _LEAST:
                raise AntipodalError(
                    f"{source}, line {number}: a key must have at least {_LEAST} characters, this "
                    f"one has {len(match[2])}. Make one by secrets.token_urlsafe(32) in Python"
                )
            known = digest(match[2].encode())
            if known in roles:
                raise AntipodalError(f"{source}, line {number} repeats an earlier key")
            roles[known] = "write" if match[1] == "write" else "read"
        if not roles:
            raise AntipodalError(f"{source} has no keys: expected lines such as `read KEY`")
        return cls(roles)

    @classmethod
    def find(cls, path: str | os.PathLike[str] | None) -> Self | None:
        """Return the keys of the file, or those of the environment, or None if there are neither.

        In the environment, commas may stand for line ends.
        """
        if path is not None:
            try:
                text = Path(path).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not text"
                raise AntipodalError(f"cannot read the keys in {path}: {reason}") from None
            return cls.parse(text, str(path))
        if VARIABLE in os.environ:
            return cls.parse(os.environ[VARIABLE].replace(",", "\n"), VARIABLE)
        return None

    def role(self, key: bytes) -> Role | None:
        """Return the role of a key, or None; how long it takes tells nothing about the keys."""
        given, found = digest(key), None
        for known, role in self._roles.items():  # to the end, found or not
            if hmac.compare_digest(known, given):
                found = role
        return found


def digest(key: bytes) -> bytes:
    """Return what is kept of a key."""
    return hashlib.sha256(key).digest()
