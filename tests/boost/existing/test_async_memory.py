"""Copies of saved tensors: their memory is used again, bounded, and where it is scarce torch writes at once."""

import torch

from ettrain.boost.existing import archive
from ettrain.boost.existing.archive import Kept, Slots


def keep(slots, sizes, path, monkeypatch):
    """What a save of tensors of these sizes does, up to its file."""
    opener = torch.serialization._open_zipfile_writer
    kept = Kept(slots, opener(str(path)), lambda: None)
    monkeypatch.setattr(torch.serialization, "_open_zipfile_writer", lambda f: kept)
    torch.save([torch.full((size,), float(size)) for size in sizes], str(path))
    monkeypatch.setattr(torch.serialization, "_open_zipfile_writer", opener)
    return kept


def test_saves_of_the_same_sizes_use_the_same_memory(tmp_path, monkeypatch):
    slots, places = Slots(), []
    for number in range(5):
        kept = keep(slots, (1000, 1000, 50_000), tmp_path / f"{number}.pt", monkeypatch)
        places.append(sorted(slot.storage.data_ptr() for slot in kept._taken))
        kept.finish()
        kept.free()
    assert places == [places[0]] * 5
    assert [tensor.numel() for tensor in torch.load(tmp_path / "4.pt")] == [1000, 1000, 50_000]


def test_no_more_is_held_between_saves_than_the_largest_took(tmp_path, monkeypatch):
    slots = Slots()
    for size in range(10_000, 60_000, 5_000):
        kept = keep(slots, (size, 7), tmp_path / "a.pt", monkeypatch)
        kept.finish()
        kept.free()
    assert slots._free_bytes <= 4 * (55_000 + 7)


def test_where_memory_is_scarce_torch_writes_at_once_and_the_same(tmp_path, monkeypatch):
    torch.save([torch.full((size,), float(size)) for size in (10, 20_000)], tmp_path / "a.pt")
    plain = (tmp_path / "a.pt").read_bytes()
    monkeypatch.setattr(archive, "available_bytes", lambda: 1000)
    kept = keep(Slots(), (10, 20_000), tmp_path / "a.pt", monkeypatch)
    assert kept.at_once
    kept.finish()
    kept.free()
    assert (tmp_path / "a.pt").read_bytes() == plain


def test_a_save_that_is_dropped_after_it_failed_ends_its_writer(tmp_path, monkeypatch):
    class Full:
        def write(self, data):
            raise OSError(28, "No space left on device")

        def flush(self):
            pass

    for _ in range(3):
        kept = Kept(Slots(), torch.serialization._open_zipfile_writer(Full()), lambda: None)
        kept.write_record("a", b"1", 1)
        try:
            kept.finish()
        except (OSError, RuntimeError):
            kept.free()
        del kept  # torch's writer would abort the process here
