"""A package that has changed, or was made elsewhere, is refused with what differs."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import PackageError
from tj_torch.package.archive import FORMAT, MANIFEST, opened, sealed

from .programs import Net

if TYPE_CHECKING:
    from pathlib import Path

X = torch.rand(3, 4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("package") / "net.tjp"
    tj.export(Net(), (X,), plugins=["torch"]).save(path)
    return path.read_bytes()


def refused(data: bytes, tmp_path: Path) -> str:
    path = tmp_path / "damaged.tjp"
    path.write_bytes(data)
    with pytest.raises(PackageError) as caught:
        tj.load(path)
    return caught.value.message


def members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_changed_byte_anywhere_is_found(data: bytes) -> None:
    for place in range(0, len(data), 97):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(PackageError, match=r"damaged|is a package of form"):
            opened(bytes(changed), "x")


def test_a_changed_member_is_named(data: bytes, tmp_path: Path) -> None:
    found = members(data)
    assert len(found) == 3
    for name, content in found.items():
        at = data.index(content) + len(content) // 2
        changed = bytearray(data)
        changed[at] ^= 1
        assert "is damaged" in refused(bytes(changed), tmp_path), name


@pytest.mark.parametrize("name", ["members", "sha256", "format"])
def test_a_changed_name_in_the_manifest_of_another_archive(
    name: str, data: bytes, tmp_path: Path
) -> None:
    found = members(data)
    assert f'"{name}"'.encode() in found[MANIFEST]
    found[MANIFEST] = found[MANIFEST].replace(f'"{name}"'.encode(), f'"x{name}"'.encode())
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for member, content in found.items():
            archive.writestr(member, content)
    assert ("damaged" if name != "format" else "of form") in refused(out.getvalue(), tmp_path)


@pytest.mark.parametrize("left", [0, 1, 100, -1, -64, -65, -1000])
def test_a_truncated_file(data: bytes, tmp_path: Path, left: int) -> None:
    assert "damaged" in refused(data[:left], tmp_path)


def test_bytes_after_the_end(data: bytes, tmp_path: Path) -> None:
    assert "damaged" in refused(data + b"x", tmp_path)


def rewritten(data: bytes, change: Any) -> bytes:
    """The package with the members that ``change`` makes of its own, and a seal that fits."""
    manifest, found = opened(data, "x")
    del manifest["format"], manifest["members"]
    change(manifest, found)
    return sealed(manifest, found)


def resealed(data: bytes, change: Any) -> bytes:
    """As `rewritten`, with the manifest as it was."""
    found = members(data)
    change(found)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in found.items():
            archive.writestr(name, content)
        archive.comment = b"0" * 64
    from hashlib import sha256

    whole = out.getvalue()[:-64]
    return whole + sha256(whole).hexdigest().encode()


def test_members_that_are_missing_or_more(data: bytes, tmp_path: Path) -> None:
    trace = "traces/computation.txt"
    text = refused(resealed(data, lambda found: found.pop(trace)), tmp_path)
    assert f"{trace} is missing" in text
    text = refused(resealed(data, lambda found: found.update(more=b"")), tmp_path)
    assert "more is not in its manifest" in text
    text = refused(resealed(data, lambda found: found.update({trace: b"other"})), tmp_path)
    assert f"{trace} is not what its manifest says" in text


@pytest.mark.parametrize("fact", ["torch", "python", "system", "processor", "tj-core", "tj-torch"])
def test_other_versions_and_machines(data: bytes, tmp_path: Path, fact: str) -> None:
    def change(manifest: dict[str, Any], found: dict[str, bytes]) -> None:
        manifest["made"][fact] = "another"

    text = refused(rewritten(data, change), tmp_path)
    assert f"{fact} is " in text
    assert "the package was made with another" in text


def test_a_processor_with_other_instructions(data: bytes, tmp_path: Path) -> None:
    def change(text: str) -> bytes:
        return rewritten(data, lambda manifest, found: manifest["made"].update(instructions=text))

    known = opened(data, "x")[0]["made"]["instructions"]
    text = refused(change(f"{known} avx512_more"), tmp_path)
    assert "the processor here has no avx512_more;" in f"{text};"
    (tmp_path / "fewer.tjp").write_bytes(change(" ".join(known.split()[:-1])))
    tj.load(tmp_path / "fewer.tjp")


def test_a_package_that_does_not_say_its_processor(data: bytes, tmp_path: Path) -> None:
    def change(manifest: dict[str, Any], found: dict[str, bytes]) -> None:
        del manifest["made"]["processor"]

    assert "does not say its processor" in refused(rewritten(data, change), tmp_path)


def test_another_form(data: bytes, tmp_path: Path) -> None:
    def change(found: dict[str, bytes]) -> None:
        old = f'"format": {FORMAT}'.encode()
        assert old in found[MANIFEST]
        found[MANIFEST] = found[MANIFEST].replace(old, b'"format": 99')

    assert "form 99" in refused(resealed(data, change), tmp_path)


def test_what_is_no_package(tmp_path: Path) -> None:
    assert "no package" in refused(b"PK\x03\x04 and nothing", tmp_path)
    with pytest.raises(PackageError, match="cannot be read"):
        tj.load(tmp_path / "nowhere.tjp")


def test_the_file_is_the_same_each_time(data: bytes) -> None:
    assert rewritten(data, lambda manifest, found: None) == data
