"""The file of a package: a zip archive of members, each with its digest in the manifest.

The comment at the end of the archive is the digest of everything before it, so that no byte of the
file can change unseen, be it in a member or between them. Digests find damage. They are no
signature: whoever makes a package chooses the code that it runs (SECURITY.md).
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

from tj_core.extend import PackageError

__all__ = ["FORMAT", "MANIFEST", "digest", "opened", "sealed"]

FORMAT = 2
"""Version of the form of packages; a package of another one is refused."""

MANIFEST = "manifest.json"

_SEAL = 64
_EPOCH = (1980, 1, 1, 0, 0, 0)


def digest(data: bytes) -> str:
    """SHA-256 of ``data`` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def sealed(manifest: Mapping[str, Any], members: Mapping[str, bytes]) -> bytes:
    """The file with ``manifest`` and ``members``; equal ones give equal bytes."""
    listed = {n: {"sha256": digest(data), "bytes": len(data)} for n, data in members.items()}
    document = {"format": FORMAT, **manifest, "members": listed}
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in {MANIFEST: text.encode(), **members}.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data)
        archive.comment = b"0" * _SEAL
    data = out.getvalue()
    return data[:-_SEAL] + digest(data[:-_SEAL]).encode()


def opened(data: bytes, name: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest and the members of the file ``data``, called ``name`` in messages.

    :raises PackageError: if it is no package, is of another form, or a byte of it has changed.
    """
    view = memoryview(data)
    whole = hashlib.sha256(view[:-_SEAL]).hexdigest().encode() == bytes(view[-_SEAL:])
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            manifest = json.loads(archive.read(MANIFEST))
            members = {n: archive.read(n) for n in names if n != MANIFEST}
    except (zipfile.BadZipFile, KeyError, ValueError, NotImplementedError, OSError) as error:
        reason = str(error) or type(error).__name__
        raise PackageError(f"{name} is no package, or is damaged: {reason}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else None
        raise PackageError(f"{name} is a package of form {found}, and this tj reads form {FORMAT}")
    listed = manifest.get("members")
    if not isinstance(listed, dict) or not all(isinstance(row, dict) for row in listed.values()):
        raise PackageError(f"{name} is damaged: its manifest has no list of members")
    _check_members(listed, members, name, whole)
    if len(names) != len(set(names)):
        raise PackageError(f"{name} is damaged: a member is there twice")
    if not whole:
        raise PackageError(f"{name} is damaged: bytes outside of its members have changed")
    return manifest, members


def _check_members(
    listed: Mapping[str, Mapping[str, Any]], members: Mapping[str, bytes], name: str, whole: bool
) -> None:
    """Compare ``members`` with those of a manifest, of the file ``name``.

    Whoever writes another archive with a seal of its own may leave members out, or add some.

    :raises PackageError: for the first that differs.
    """
    for member in sorted(listed.keys() | members.keys()):
        if member not in members:
            raise PackageError(f"{name} is damaged: {member} is missing")
        if member not in listed:
            raise PackageError(f"{name} is damaged: {member} is not in its manifest")
        if digest(members[member]) != listed[member].get("sha256"):
            what = "is not what its manifest says" if whole else "has changed"
            raise PackageError(f"{name} is damaged: {member} {what}")
