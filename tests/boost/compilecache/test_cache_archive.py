"""The bytes of an archive, and what is done with bytes that are none."""

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ettrain.boost.compilecache.archive import MAGIC, ArchiveRefusedError, Entry, bounded, merged, pack, unpack

KEY = {"program": "p", "torch": "2.13"}
SECRET = b"0123456789abcdef"
entries = st.lists(
    st.builds(
        Entry,
        kind=st.sampled_from(["inductor", "pgo", "library"]),
        name=st.text(min_size=1, max_size=8),
        content=st.binary(max_size=64),
        used=st.integers(0, 30_000),
    ),
    max_size=8,
)


def some(*names, used=20_000):
    return [Entry(kind="library", name=name, content=name.encode() * 50, used=used) for name in names]


@given(entries, st.sampled_from([None, SECRET]))
def test_what_was_packed_comes_out(packed, secret):
    archive = unpack(pack(KEY, packed, made=7, secret=secret), secret=secret)
    assert archive.key == KEY
    assert archive.made == 7
    assert archive.signed is (secret is not None)
    assert sorted(archive.entries, key=lambda e: (e.identity, e.used)) == sorted(packed, key=lambda e: (e.identity, e.used))


@given(entries)
def test_the_order_of_entries_does_not_matter(packed):
    unique = list(merged(packed, ()))
    assert pack(KEY, unique, made=1, secret=None) == pack(KEY, unique[::-1], made=1, secret=None)


@pytest.mark.parametrize("secret", [None, SECRET])
def test_every_cut_and_every_flipped_bit_is_noticed(secret):
    data = pack(KEY, some("a", "b"), made=1, secret=secret)
    for length in range(len(data)):
        with pytest.raises(ArchiveRefusedError):
            unpack(data[:length], secret=secret)
    for at in range(len(data)):
        with pytest.raises(ArchiveRefusedError):
            unpack(data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :], secret=secret)
    with pytest.raises(ArchiveRefusedError):
        unpack(data + data, secret=secret)


@pytest.mark.parametrize(
    ("made_with", "read_with", "reason"),
    [
        (None, SECRET, "not signed"),
        (SECRET, None, "no key is set"),
        (SECRET, b"another key, 16 bytes", "another key"),
    ],
)
def test_a_foreign_signature_is_refused_with_the_reason(made_with, read_with, reason):
    with pytest.raises(ArchiveRefusedError, match=reason):
        unpack(pack(KEY, some("a"), made=1, secret=made_with), secret=read_with)


def forged(header, content):
    from ettrain.boost.compilecache.archive import _mac

    body = header + b"\n" + zlib.compress(content)
    return MAGIC + _mac(body, None) + body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"text",
        b"PK\x03\x04" + b"x" * 100,
        forged(b"{}", b""),
        forged(b"[]", b""),
        forged(b'{"key": {}, "made": 1, "signed": false, "entries": [["library", "x", "0", 5, 1]]}', b"abcde"),
        forged(b'{"key": {}, "made": 1, "signed": false, "entries": [["library", "x", "0", -5, 1]]}', b""),
        forged(b'{"key": {}, "made": 1, "signed": false, "entries": [["library", "x", "0", 99999999999999, 1]]}', b""),
        forged(b'{"key": {}, "made": 1, "signed": false, "entries": [["library", "x", "0", 4, 1]]}', b"x" * 10_000_000),
    ],
)
def test_an_authentic_archive_that_makes_no_sense_is_refused(data):
    with pytest.raises(ArchiveRefusedError):
        unpack(data, secret=None)


def test_merging_keeps_all_and_the_later_day_of_use():
    both = merged(some("a", "b", used=5), some("b", "c", used=9))
    assert {(entry.name, entry.used) for entry in both} == {("a", 5), ("b", 9), ("c", 9)}


def test_the_entries_used_least_recently_go_first():
    kept = bounded([*some("old", used=1), *some("new", used=9), *some("middle", used=5)], max_bytes=450, oldest_day=0)
    assert [entry.name for entry in kept] == ["new", "middle"]
    assert [entry.name for entry in bounded(some("a", used=4) + some("b", used=5), max_bytes=10**9, oldest_day=5)] == ["b"]
