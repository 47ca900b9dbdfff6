"""Archives at an address: publishers at once, publishers killed, readers in between, files of others."""

import os
import signal
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pytest

from ettrain.boost.compilecache.archive import Entry, pack
from ettrain.boost.compilecache.key import digest
from ettrain.boost.compilecache.store import Store, secret_from, today
from ettrain.cli import main
from ettrain.errors import UsageError

KEY = {"program": "train.py", "torch": "2.13", "cpu": ["AVX2", "avx2"]}
SECRET = b"0123456789abcdef"


def some(*names, used=None):
    return [Entry(kind="library", name=name, content=name.encode() * 50, used=today() if used is None else used) for name in names]


def names(store, key=KEY):
    return sorted(entry.name for entry in store.find(key).entries)


def the_file(folder):
    (found,) = Path(folder).rglob("*.ettc")
    return found


def test_a_second_publication_keeps_what_it_did_not_use(tmp_path):
    store = Store(str(tmp_path))
    store.publish(KEY, some("a"))
    store.publish(KEY, some("b"))
    assert names(store) == ["a", "b"]
    assert len(store.stored()) == 1
    store.publish(KEY, some("b"))
    assert len(store.stored()) == 1


def test_a_replaced_entry_goes(tmp_path):
    store = Store(str(tmp_path))
    store.publish(KEY, some("a", "b"))
    store.publish(KEY, some("c"), without={("library", "a")})
    assert names(store) == ["b", "c"]


def test_publishers_at_once_lose_nothing(tmp_path):
    program = textwrap.dedent("""
        import sys
        from ettrain.boost.compilecache.archive import Entry
        from ettrain.boost.compilecache.store import Store, today
        store, me = Store(sys.argv[1]), sys.argv[2]
        for number in range(8):
            store.publish({"program": "p"}, [Entry(kind="library", name=f"{me}-{number}", content=b"x" * 10_000, used=today())])
    """)
    writers = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(me)]) for me in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    store = Store(str(tmp_path))
    assert names(store, {"program": "p"}) == sorted(f"{me}-{number}" for me in range(4) for number in range(8))
    store.publish({"program": "p"}, ())
    assert len(store.stored()) == 1
    assert len(names(store, {"program": "p"})) == 32


def test_a_publisher_killed_at_any_moment_loses_nothing(tmp_path):
    program = textwrap.dedent("""
        import os, sys
        from ettrain.boost.compilecache.archive import Entry
        from ettrain.boost.compilecache.store import Store, today
        store, number = Store(sys.argv[1]), 0
        while True:
            store.publish({"program": "p"}, [Entry(kind="library", name=str(number), content=os.urandom(200_000), used=today())])
            print(number, flush=True)
            number += 1
    """)
    store = Store(str(tmp_path))
    for round_ in range(8):
        writer = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        done = -1
        while done < 1 + round_ % 3:
            done = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        found = store.find({"program": "p"})
        assert not found.refused
        assert {str(number) for number in range(done + 1)} <= {entry.name for entry in found.entries}


def test_an_archive_removed_between_listing_and_reading_is_looked_for_again(tmp_path, monkeypatch):
    store, other = Store(str(tmp_path)), Store(str(tmp_path))
    store.publish(KEY, some("a"))
    read, first = store.read, []

    def publish_first(path):
        if not first:
            first.append(path)
            other.publish(KEY, some("b"))
        return read(path)

    monkeypatch.setattr(store, "read", publish_first)
    assert names(store) == ["a", "b"]


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text", "other key"])
def test_a_damaged_archive_is_left_out_with_the_reason_and_the_others_are_used(tmp_path, damage):
    store = Store(str(tmp_path))
    store.publish(KEY, some("good"))
    good = the_file(tmp_path)
    data = good.read_bytes()
    other = pack({**KEY, "cpu": ["AVX512"]}, some("bad"), made=1, secret=None)
    damaged = {"cut": data[:-9], "flip": data[:60] + b"?" + data[61:], "empty": b"", "text": b"hello", "other key": other}[damage]
    (good.parent / "00bad.ettc").write_bytes(damaged)
    found = store.find(KEY)
    assert [entry.name for entry in found.entries] == ["good"]
    (reason,) = found.refused
    assert reason.startswith("00bad.ettc: ")
    assert ("AVX512" in reason) == (damage == "other key")


def test_nothing_stored_is_explained_by_the_nearest_archive(tmp_path):
    store = Store(str(tmp_path))
    assert store.why_nothing(KEY) == "no archive yet"
    store.publish({**KEY, "cpu": ["AVX512", "avx2", "avx512f"]}, some("a"))
    store.publish({**KEY, "cpu": ["AVX512"], "torch": "2.12"}, some("b"))
    assert store.find(KEY).entries == ()
    assert "needs AVX512 avx512f, lacks AVX2" in store.why_nothing(KEY)
    assert "2.12" not in store.why_nothing(KEY)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_an_unsigned_archive_of_another_user_is_refused(tmp_path):
    store = Store(str(tmp_path))
    store.publish(KEY, some("a"))
    os.chown(the_file(tmp_path), 12_345, -1)
    (reason,) = store.find(KEY).refused
    assert "another user" in reason
    signed = Store(str(tmp_path), SECRET)
    signed.publish(KEY, some("b"))
    path = next(path for path in tmp_path.rglob("*.ettc") if path.stat().st_uid == os.getuid())
    os.chown(path, 12_345, -1)
    assert names(signed) == ["b"]


def test_an_unsigned_archive_that_others_may_write_is_refused(tmp_path):
    store = Store(str(tmp_path))
    store.publish(KEY, some("a"))
    the_file(tmp_path).chmod(0o664)
    (reason,) = store.find(KEY).refused
    assert "others may write" in reason


def test_any_fsspec_address_works_and_needs_a_key():
    address = f"memory://{uuid.uuid4()}"
    with pytest.raises(UsageError, match="ETT_CACHE_KEY"):
        Store(address)
    store = Store(address, SECRET)
    store.publish(KEY, some("a"))
    store.publish(KEY, some("b"))
    assert names(store) == ["a", "b"]
    assert len(store.stored()) == 1
    assert Store(address, b"another key, 16 bytes").find(KEY).entries == ()


def test_old_and_excess_entries_go(tmp_path):
    store = Store(str(tmp_path))
    store.publish(KEY, some("old", used=today() - 40) + some("kept"))
    assert names(store) == ["kept"]
    store.publish(KEY, some("new"), max_bytes=150)
    assert names(store) == ["new"]


def test_a_key_is_read_from_a_file_and_must_be_long_enough(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(SECRET + b"\n")
    assert secret_from(f"@{path}") == SECRET
    assert secret_from("") is None
    with pytest.raises(UsageError, match="too short"):
        secret_from("short")
    with pytest.raises(UsageError, match="cannot be read"):
        secret_from(f"@{tmp_path}/none")


def test_equal_keys_have_equal_digests_in_all_processes():
    program = f"from ettrain.boost.compilecache.key import digest; print(digest({KEY!r}))"
    told = {
        subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True).stdout
        for seed in ("1", "2")
    }
    assert told == {digest(KEY) + "\n"}


def test_ett_cache_lists_shows_verifies_and_prunes(tmp_path, capsys):
    store = Store(str(tmp_path))
    assert main(["cache", "ls", str(tmp_path)]) == 0
    assert "no archive" in capsys.readouterr().out
    store.publish(KEY, some("lib/one.so"))
    bad = the_file(tmp_path).with_name("bad.ettc")
    bad.write_bytes(b"nothing")
    assert main(["cache", "ls", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert "1 library" in listed
    assert "CANNOT BE USED" in listed
    assert main(["cache", "show", str(tmp_path)]) == 0
    assert "lib/one.so" in capsys.readouterr().out
    assert main(["cache", "verify", str(tmp_path)]) == 1
    capsys.readouterr()
    assert main(["cache", "prune", str(tmp_path)]) == 0
    assert "removed" in capsys.readouterr().out
    assert not bad.exists()
    assert main(["cache", "verify", str(tmp_path)]) == 0
    assert names(store) == ["lib/one.so"]


def test_ett_cache_without_an_address_says_what_to_do(capsys, monkeypatch):
    monkeypatch.delenv("ETT_COMPILE_CACHE", raising=False)
    assert main(["cache", "ls"]) == 2
    assert "ett cache ls" in capsys.readouterr().err
    assert main(["cache", "ls", "s3x://bucket"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_graph_compiled_in_spite_of_a_stored_one_of_its_key_is_published_and_a_twin_of_another_rank_is_not():
    from ettrain.boost.compilecache.cache import fresh_entries

    (stored,) = some("graph")
    stored = Entry(kind="inductor", name="graph", content=stored.content, used=stored.used)
    other = Entry(kind="inductor", name="graph", content=b"for other guards", used=today())
    library = Entry(kind="library", name="graph", content=b"built here", used=today())
    key = {("inductor", "graph"), ("library", "graph")}
    known = (stored, *some("graph"))
    assert fresh_entries([stored, other, library], known, compiled_again=key, since=today() - 7) == [other]
    assert fresh_entries([stored, other, library], known, compiled_again=set(), since=today() - 7) == []
    assert fresh_entries([other], (), compiled_again=set(), since=today() - 7) == [other]
    old = Entry(kind="inductor", name="graph", content=b"x", used=today() - 9)
    assert fresh_entries([stored], (old,), compiled_again=set(), since=today() - 7) == [stored]
