"""Bundles that somebody changed or made up: named as damaged, and never a way out of the folder."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tprig.test_bundle import (
    ARM,
    DOCUMENTS,
    NEEDED,
    RUN,
    STREAMS,
    loaded_document,
    loaded_stream,
    messages,
    problems,
    write_sample,
)
from tprig import evidence
from tprig.bundle import Bundle, load, records, seal, tree
from tprig.bundle.files import encode, encode_document, path_fault
from tprig.bundle.manifest import root_digest
from tprig.bundle.records import MAX_NESTING

FILES = [*DOCUMENTS, *STREAMS, "engines/e1/logs/host.log", "manifest.json"]
OUTPUTS = "runs/r1/outputs.jsonl"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("sealed"))


@pytest.fixture
def root(sample: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sample, tmp_path / "copy"))


def resealed(root: Path) -> Bundle:
    seal(root)
    return load(root)


def remake_manifest(root: Path, paths: list[str]) -> None:
    """Writes a manifest over these paths that is sound in itself."""
    entries = [evidence.FileEntry(path=p, size_bytes=5, sha256="0" * 64) for p in paths]
    manifest = evidence.Manifest(
        version=evidence.SCHEMA_VERSION,
        bundle="sample",
        files=entries,
        root=root_digest(evidence.SCHEMA_VERSION, "sample", entries),
    )
    (root / "manifest.json").write_bytes(encode_document(manifest))


# --- a sealed bundle that was changed --------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_changed_byte_is_damage_of_its_file(sample: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(FILES))
    before = (sample / path).read_bytes()
    at = data.draw(st.integers(0, len(before) - 1))
    flip = data.draw(st.integers(1, 255))
    changed = bytearray(before)
    changed[at] ^= flip
    try:
        (sample / path).write_bytes(changed)
        bundle = load(sample)
    finally:
        (sample / path).write_bytes(before)
    assert problems(bundle) == {path: "damaged"}
    assert bundle.damaged
    assert bundle.sealed is (path != "manifest.json")


@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b + b"\n", lambda _: b""])
def test_any_change_of_size_is_damage(
    root: Path, path: str, change: Callable[[bytes], bytes]
) -> None:
    (root / path).write_bytes(change((root / path).read_bytes()))
    assert problems(load(root)) == {path: "damaged"}


@pytest.mark.parametrize("path", FILES[:-1])
def test_a_removed_file_is_damage(root: Path, path: str) -> None:
    (root / path).unlink()
    bundle = load(root)
    assert problems(bundle) == {path: "damaged"}
    assert "listed in the manifest and not there" in messages(bundle, path)


@pytest.mark.parametrize("path", ["note.txt", "runs/r1/note.txt", os.fsdecode(b"\xff")])
def test_an_added_file_is_damage(root: Path, path: str) -> None:
    (root / path).write_text("x")
    (problem,) = load(root).problems
    assert problem.kind == "damaged"
    assert problem.file == path.replace("\udcff", "\\udcff")
    assert "not listed" in str(problem)
    str(problem).encode()


@pytest.mark.parametrize("path", [*DOCUMENTS, *STREAMS])
def test_damaged_evidence_is_not_handed_on(root: Path, path: str) -> None:
    data = (root / path).read_bytes()
    (root / path).write_bytes(data.replace(b"1", b"2", 1))
    bundle = load(root)
    assert problems(bundle) == {path: "damaged"}
    load_one = loaded_document if path in DOCUMENTS else loaded_stream
    assert load_one(bundle, path) is None


def test_nothing_is_handed_on_when_the_manifest_is_damaged(root: Path) -> None:
    (root / "manifest.json").write_text("{}")
    bundle = load(root)
    assert problems(bundle) == {"manifest.json": "damaged"}
    assert (bundle.plan, bundle.ledger, bundle.runs, bundle.engines) == (None, None, {}, {})


# --- a manifest that was made up -------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/etc/passwd", "is absolute"),
        ("../outside", "holds '..'"),
        ("runs/../../outside", "holds '..'"),
        ("a\0b", "holds a NUL"),
        ("a\\b", "holds a backslash"),
        ("a//b", "is not normalised"),
        ("./a", "is not normalised"),
        ("a/", "is not normalised"),
        ("a/./b", "is not normalised"),
        ("a\x1b[2Jb", "cannot be printed"),
        ("manifest.json", "lists itself"),
    ],
)
def test_a_hostile_path_damages_the_manifest(root: Path, path: str, fault: str) -> None:
    (root.parent / "outside").write_text("12345")
    remake_manifest(root, [path])
    bundle = load(root)
    assert problems(bundle) == {"manifest.json": "damaged"}
    assert fault in messages(bundle, "manifest.json")
    assert messages(bundle, "manifest.json").isprintable()


@pytest.mark.parametrize(
    ("paths", "fault"), [(["a", "a"], "more than once"), (["b", "a"], "must be sorted")]
)
def test_paths_are_sorted_and_do_not_repeat(root: Path, paths: list[str], fault: str) -> None:
    remake_manifest(root, paths)
    assert fault in messages(load(root), "manifest.json")


@given(path=st.text(st.sampled_from("ab./\\\0\n\x7f\u202e"), max_size=9))
def test_a_path_without_fault_stays_inside(path: str) -> None:
    if path_fault(path) is None:
        assert os.path.normpath(path) == path
        assert os.path.normpath(f"/root/{path}").startswith("/root/")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b'"version": 1', b'"version": 2', "schema version 2; this tprig reads 1"),
        (b'"version": 1', b'"version": 1, "more": 0', "unknown field `more`"),
        (b'"version": 1', b'"version": 2, "more": 0', "schema version 2; this tprig reads 1"),
        (b'"version": 1', b'"version": "1"', "Expected `int`, got `str`"),
        (b'"size_bytes": ', b'"size_bytes": -', "Expected `int` >= 0"),
        (b'"size_bytes": ', b'"size_bytes": NaN', "is not whole JSON"),
        (b'"sha256": "', b'"sha256": "x', "matching regex"),
        (b'"version": 1', b'"version":  1', "not byte for byte"),
        (b'"bundle": "sample"', b'"bundle": "s\\u0061mple"', "not byte for byte"),
        (b'"bundle": "sample"', b'"bundle": "simple"', "root digest"),
    ],
)
def test_a_malformed_manifest_is_damaged(root: Path, old: bytes, new: bytes, fault: str) -> None:
    target = root / "manifest.json"
    assert old in target.read_bytes()
    target.write_bytes(target.read_bytes().replace(old, new, 1))
    bundle = load(root)
    assert problems(bundle) == {"manifest.json": "damaged"}
    assert fault in messages(bundle, "manifest.json")


# --- files that are no files -----------------------------------------------------------------


def make_link(path: Path) -> None:
    path.symlink_to(Path("/dev/zero"))


def make_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as unbound:
            unbound.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (make_link, "a symbolic link"),
        (os.mkfifo, "a FIFO"),
        (make_socket, "a socket"),
    ],
)
@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize("sealed", [True, False])
def test_what_is_no_regular_file_is_never_read(
    root: Path,
    path: str,
    make: Callable[[Path], None],
    kind: str,
    sealed: bool,  # noqa: FBT001
) -> None:
    if not sealed:
        (root / "manifest.json").unlink()
    (root / path).unlink(missing_ok=True)
    make(root / path)
    bundle = load(root)
    assert problems(bundle)[path] == "damaged"
    assert kind in messages(bundle, path)
    assert path not in DOCUMENTS or loaded_document(bundle, path) is None
    assert path not in STREAMS or loaded_stream(bundle, path) is None


@pytest.mark.parametrize("path", NEEDED)
def test_a_folder_in_a_files_place_is_not_the_file(root: Path, path: str) -> None:
    (root / path).unlink()
    (root / path).mkdir()
    assert problems(load(root)) == {path: "damaged"}
    (root / "manifest.json").unlink()
    assert problems(load(root)) == {path: "missing", "manifest.json": "missing"}


@pytest.mark.parametrize("sealed", [True, False])
def test_a_linked_folder_is_not_entered(root: Path, sealed: bool) -> None:  # noqa: FBT001
    outside = root.parent / "outside"
    (root / "runs").rename(outside)
    (root / "runs").symlink_to(outside)
    if not sealed:
        (root / "manifest.json").unlink()
    bundle = load(root)
    assert problems(bundle)["runs"] == "damaged"
    assert all(history.run is None for history in bundle.runs.values())
    assert all(history.outputs is None for history in bundle.runs.values())


def test_a_file_replaced_by_a_link_after_it_was_listed_is_not_followed(root: Path) -> None:
    with tree.Tree(root) as opened:
        assert "plan.json" in opened.inventory().sizes_bytes
        (root / "plan.json").rename(root.parent / "outside")
        (root / "plan.json").symlink_to(root.parent / "outside")
        with pytest.raises(OSError, match="is a symbolic link, not a regular file"):
            opened.open("plan.json")
        (root / "runs").rename(root.parent / "elsewhere")
        (root / "runs").symlink_to(root.parent / "elsewhere")
        with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
            opened.open(OUTPUTS)


# --- absurd sizes ----------------------------------------------------------------------------


def test_an_absurdly_large_file_is_not_read(root: Path) -> None:
    (root / "manifest.json").unlink()
    with (root / OUTPUTS).open("r+b") as handle:
        handle.truncate(tree.MAX_FILE_BYTES + 1)
    bundle = load(root)
    assert problems(bundle)[OUTPUTS] == "damaged"
    assert f"the limit is {tree.MAX_FILE_BYTES}" in messages(bundle, OUTPUTS)


def test_a_long_line_and_a_long_document_are_not_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "manifest.json").unlink()
    monkeypatch.setattr(records, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(records, "MAX_DOCUMENT_BYTES", 200)
    bundle = load(root)
    assert "line 2: is longer than 100 bytes, the limit" in messages(bundle, OUTPUTS)
    assert "more than 200 bytes, the limit" in messages(bundle, "plan.json")


def test_too_many_files_are_not_listed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MAX_ENTRIES", 5)
    bundle = load(root)
    assert "more than 5 files and folders" in messages(bundle, ".")
    assert bundle.damaged


def test_folders_nest_so_deep(root: Path) -> None:
    deep = root.joinpath(*["d"] * (tree.MAX_DEPTH_FOLDERS + 1))
    deep.mkdir(parents=True)
    (deep / "file").write_text("x")
    (problem,) = load(root).problems
    assert problem.kind == "damaged"
    assert "below 16 folders, the limit" in problem.message


def test_absurdly_many_ranks_are_damage(root: Path) -> None:
    run = msgspec.structs.replace(RUN, rank_streams=10**9)
    (root / "runs/r1/run.json").write_bytes(encode_document(run))
    bundle = resealed(root)
    assert problems(bundle) == {"runs/r1/run.json": "damaged"}


@pytest.mark.parametrize("depth", [MAX_NESTING + 1, 900, 100_000])
@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}")])
def test_deep_nesting_is_damage(root: Path, depth: int, brackets: tuple[str, str]) -> None:
    nested = msgspec.Raw((brackets[0] * depth + "1" + brackets[1] * depth).encode())
    arm = msgspec.structs.replace(ARM, engine_args={"deep": nested})
    (root / "engines/e1/spec.json").write_bytes(encode(arm))
    bundle = resealed(root)
    assert problems(bundle) == {"engines/e1/spec.json": "damaged"}


@pytest.mark.parametrize("path", [*DOCUMENTS, *STREAMS, "manifest.json"])
@pytest.mark.parametrize("brackets", ["[", '{"a":', '{"type":', '{"":[{"":'])
def test_a_file_of_brackets_is_damage(root: Path, path: str, brackets: str) -> None:
    (root / path).write_text(brackets * 50_000 + "\n")
    bundle = load(root) if path == "manifest.json" else resealed(root)
    assert problems(bundle)[path] == "damaged"


# --- content that does not fit the schema ----------------------------------------------------


@pytest.mark.parametrize(
    ("path", "old", "new", "fault"),
    [
        (OUTPUTS, b'"version":1', b'"version":2', "line 1: has schema version 2"),
        (OUTPUTS, b'"version":1', b'"version":2,"more":1', "line 1: has schema version 2"),
        (OUTPUTS, b'"outputs"', b'"steps"', "line 1: expected the header of stream 'outputs'"),
        (OUTPUTS, b'"subject":"r1"', b'"subject":"r2"', "line 1: expected a stream of 'r1'"),
        (OUTPUTS, b'"type":"header"', b'"type":"end"', "line 1: "),
        (OUTPUTS, b'"step":0', b'"step":-1', "line 2: does not fit schema version 1: Expected"),
        (OUTPUTS, b'"step":0', b'"step":0.5', "line 2: "),
        (OUTPUTS, b'"step":0', b'"step":"0"', "line 2: "),
        (OUTPUTS, b'"step":0', b'"step":NaN', "line 2: JSON is malformed"),
        (OUTPUTS, b"-0.25", b"NaN", "line 2: JSON is malformed"),
        (OUTPUTS, b"-0.25", b"null", "line 2: "),
        (OUTPUTS, b"-0.25", b"1e999", "line 2: "),
        (OUTPUTS, b"-0.25", b'"NaN"', "line 2: "),
        (OUTPUTS, b'"token_id":3', b'"token_id":-3', "line 2: "),
        (OUTPUTS, b'"step":0', b'"step":0,"more":1', "line 2: "),
        (OUTPUTS, b'"error":', b'"errors":', "line 3: "),
        (OUTPUTS, b'"type":"refusal"', b'"type":"step"', "line 3: "),
        (OUTPUTS, b'"records":2', b'"records":3', "line 4: the end says 3 records; 2 are there"),
        (OUTPUTS, b'"records":2', b'"records":-2', "line 4: "),
        (OUTPUTS, b'{"type":"end"', b'\n{"type":"end"', "line 4: "),
        (OUTPUTS, "é".encode(), b"\xff", "line 3: Invalid UTF-8"),
        (OUTPUTS, "é".encode(), b"\\ud800", "line 3: "),
        ("ledger.jsonl", b'"subject":"sample"', b'"subject":"x"', "expected a stream of 'sample'"),
        ("ledger.jsonl", b'"planned"', b'"dreamt"', "line 2: "),
        ("plan.json", b'"version": 1', b'"version": 7', "has schema version 7"),
        ("plan.json", b'"version": 1', b'"version": 7,"x":1', "has schema version 7"),
        ("plan.json", b'"seed": 1', b'"seed": "1"', "does not fit schema version 1"),
        ("plan.json", b'"seed": 1', b'"seed": NaN', "is not whole JSON"),
        ("verdicts.json", b'"pass"', b'"PASS"', "does not fit schema version 1"),
        ("runs/r1/run.json", b'"id": "r1"', b'"id": "r2"', "names the run 'r2', in the folder of"),
        ("runs/r1/run.json", b"0.5", b"Infinity", "is not whole JSON"),
        ("runs/r1/run.json", b'"rank_streams": 2', b'"rank_streams": -2', "does not fit schema"),
        ("engines/e1/spec.json", b'"b"', b'"\xff"', "holds malformed JSON as 'a'"),
    ],
)
def test_content_that_does_not_fit_is_damage(
    root: Path, path: str, old: bytes, new: bytes, fault: str
) -> None:
    data = (root / path).read_bytes()
    assert old in data
    (root / path).write_bytes(data.replace(old, new, 1))
    bundle = resealed(root)
    assert problems(bundle) == {path: "damaged"}
    assert fault in messages(bundle, path)
    assert (loaded_document if path in DOCUMENTS else loaded_stream)(bundle, path) is None


@pytest.mark.parametrize("after", [b"{}\n", b"\n", b'{"type":"end","records":2}\n', b"{"])
def test_nothing_follows_the_end(root: Path, after: bytes) -> None:
    with (root / OUTPUTS).open("ab") as handle:
        handle.write(after)
    bundle = resealed(root)
    assert problems(bundle) == {OUTPUTS: "damaged"}
    assert "line 5: follows the end record" in messages(bundle, OUTPUTS)


def test_a_header_stands_first_only(root: Path) -> None:
    lines = (root / OUTPUTS).read_bytes().splitlines(keepends=True)
    (root / OUTPUTS).write_bytes(b"".join([lines[0], *lines]))
    assert "line 2: " in messages(resealed(root), OUTPUTS)
    (root / OUTPUTS).write_bytes(b"".join(lines[1:]))
    assert "line 1: " in messages(resealed(root), OUTPUTS)


def test_malformed_content_is_damage_without_a_manifest_too(root: Path) -> None:
    (root / "manifest.json").unlink()
    (root / "plan.json").write_bytes(b'{"version": "1"}\n')
    (root / OUTPUTS).write_bytes((root / OUTPUTS).read_bytes().replace(b'"step":0', b'"step":-1'))
    found = problems(load(root))
    assert (found["plan.json"], found[OUTPUTS]) == ("damaged", "damaged")


def test_a_rank_too_many_is_damage(root: Path) -> None:
    shutil.copy(root / "runs/r1/ranks/rank1.jsonl", root / "runs/r1/ranks/rank2.jsonl")
    bundle = resealed(root)
    assert problems(bundle) == {"runs/r1/ranks/rank2.jsonl": "damaged"}
    assert sorted(bundle.runs["r1"].ranks) == [0, 1]


@settings(max_examples=100, deadline=None)
@given(
    path=st.sampled_from([*DOCUMENTS, *STREAMS]),
    content=st.binary(max_size=60)
    | st.text(st.sampled_from('{}[]":,0-eE.tnf\\u\n'), max_size=60).map(str.encode),
)
def test_no_content_makes_the_loader_fail(sample: Path, path: str, content: bytes) -> None:
    before = {name: (sample / name).read_bytes() for name in (path, "manifest.json")}
    try:
        (sample / path).write_bytes(content)
        bundle = resealed(sample)
    finally:
        for name, data in before.items():
            (sample / name).write_bytes(data)
    assert path in problems(bundle)
    assert all(str(problem).isprintable() for problem in bundle.problems)
