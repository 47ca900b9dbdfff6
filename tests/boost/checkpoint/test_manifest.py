"""The manifest: what goes in comes out, and whatever was altered is refused in words."""

import json
import math
import zlib

import pytest

from ettrain.boost.checkpoint.manifest import FileEntry, Manifest
from ettrain.errors import CheckpointInvalidError


def manifest(**more):
    files = {"__0_0.distcp": FileEntry(bytes=3, crc32=f"{zlib.crc32(b'abc'):08x}"), ".metadata": FileEntry(bytes=0, crc32="00000000")}
    return Manifest(**{"step": 120, "created_ns": 1_700_000_000_000_000_000, "world": 2, "files": files, **more})


def test_what_is_written_is_read_again():
    said = manifest(job="j", attempt=3, name="step-00000120", generation=2, versions={"torch": "2.13"}, position={"epoch": 1, "samples": 960},
                    metrics={"loss": 0.1}, seconds={"blocking": 0.5, "write": 1e-9}, more={"invented": {"later": [1, "two"]}})  # fmt: skip
    assert Manifest.from_bytes(said.to_bytes()) == said


def test_it_is_plain_json_with_the_fields_of_the_format():
    told = json.loads(manifest().to_bytes())
    assert told["schema"] == 1
    assert told["files"]["__0_0.distcp"] == {"bytes": 3, "crc32": "352441c2"}
    rest = {name: value for name, value in told.items() if name != "checksum"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    assert told["checksum"] == f"{zlib.crc32(canonical.encode()):08x}"


def test_a_metric_that_is_not_finite_stays_valid_json():
    data = manifest(metrics={"loss": math.inf}).to_bytes()
    assert json.loads(data)["metrics"] == {"loss": None}
    assert math.isnan(Manifest.from_bytes(data).metrics["loss"])


def test_no_single_flipped_bit_passes_unseen():
    data = manifest().to_bytes()
    same = 0
    for place in range(len(data)):
        for bit in (0, 3, 5):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            try:
                read = Manifest.from_bytes(bytes(changed))
            except CheckpointInvalidError:
                continue
            assert read == manifest(), f"bit {bit} of byte {place}: {bytes(changed)!r}"  # white space may change
            same += 1
    assert same < len(data) // 4


def test_every_truncation_is_refused():
    data = manifest().to_bytes()
    for size in range(len(data) - 1):  # the last byte is a line's end
        with pytest.raises(CheckpointInvalidError):
            Manifest.from_bytes(data[:size])


def signed(told):
    canonical = json.dumps(told, sort_keys=True, separators=(",", ":"))
    return json.dumps({**told, "checksum": f"{zlib.crc32(canonical.encode()):08x}"}).encode()


GOOD = {"schema": 1, "step": 1, "created_ns": 2, "world": 1, "files": {}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "newer ettrain"),
        ({"schema": "1"}, "not a manifest"),
        ({"schema": True}, "not a manifest"),
        ({"step": -1}, "step is not a whole number"),
        ({"step": 1.0}, "step is not a whole number"),
        ({"world": None}, "world is not a whole number"),
        ({"files": []}, "lists no files"),
        ({"files": {"../x": {"bytes": 1, "crc32": "00000000"}}}, "file '../x' is malformed"),
        ({"files": {"/etc/passwd": {"bytes": 1, "crc32": "00000000"}}}, "malformed"),
        ({"files": {"manifest.json": {"bytes": 1, "crc32": "00000000"}}}, "malformed"),
        ({"files": {"x": {"bytes": -1, "crc32": "00000000"}}}, "malformed"),
        ({"files": {"x": {"bytes": 1, "crc32": "0x000000"}}}, "malformed"),
        ({"files": {"x": 3}}, "malformed"),
        ({"job": 3}, "job is not a text"),
        ({"metrics": []}, "metrics is not an object"),
        ({"metrics": {"loss": "low"}}, "loss is not a number"),
    ],
)
def test_what_is_malformed_is_refused_in_words(change, said):
    Manifest.from_bytes(signed(GOOD))
    with pytest.raises(CheckpointInvalidError, match=said):
        Manifest.from_bytes(signed({**GOOD, **change}))


@pytest.mark.parametrize(
    "data", [b"", b"[1]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"schema": 1, "x": NaN}', b'{"schema": 1, "x": 1e999}']
)
def test_what_is_no_manifest_is_refused(data):
    with pytest.raises(CheckpointInvalidError):
        Manifest.from_bytes(data)


def test_what_could_not_be_read_again_is_not_written():
    for wrong in (
        {"position": {"at": object()}},
        {"metrics": {"loss": "low"}},
        {"files": {"a/b": FileEntry(bytes=1, crc32="00000000")}},
        {"step": -1},
    ):
        with pytest.raises(CheckpointInvalidError):
            manifest(**wrong).to_bytes()
