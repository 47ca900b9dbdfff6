"""A program that knows nothing of ettrain, and does to its checkpoints what programs do. A gate stands in for a slow disk.

Usage: unmodified.py SCENARIO ... ; prints one JSON object: scenario -> what it saw.
"""

import errno
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import torch

GATE = threading.Event()
GATE.set()
FSYNC = os.fsync


def slow_fsync(descriptor):
    if threading.current_thread() is not threading.main_thread():
        GATE.wait(30)
        if FAIL:
            raise OSError(FAIL[0], os.strerror(FAIL[0]))
    FSYNC(descriptor)


FAIL = []
os.fsync = slow_fsync


def state(value=1.0):
    weight = torch.full((200_000,), value)
    return {"weight": weight, "view": weight[10:], "half": torch.ones(3, dtype=torch.bfloat16), "empty": torch.empty(0), "name": "ü", "n": 7}


def opened_soon():
    threading.Timer(0.3, GATE.set).start()


SPY = subprocess.Popen(
    [sys.executable, "-SEc", """
import os, sys
for line in sys.stdin:
    name = line.strip()
    if os.path.isdir(name):
        data = "\\n".join(sorted(os.listdir(name))).encode()
    else:
        data = open(name, "rb").read() if os.path.exists(name) else b"absent"
    sys.stdout.buffer.write(len(data).to_bytes(8, "big") + data)
    sys.stdout.buffer.flush()
"""],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
)  # fmt: skip


def raw(path):
    """What is on the disk, as another process sees it."""
    SPY.stdin.write(f"{os.getcwd()}/{path}\n".encode())
    SPY.stdin.flush()
    data = SPY.stdout.read(int.from_bytes(SPY.stdout.read(8), "big"))
    return None if data == b"absent" else data


def saved(value, path):
    torch.save(state(value), path)
    return Path(path).read_bytes()


def bytes_same():
    """Against torch's own function in a process where nothing is replaced: the test compares the digests."""
    seen = {}
    os.symlink("pointed.pt", "link.pt")
    for name in ("plain.pt", "no-ending", "ü.pt", "link.pt"):
        torch.save(state(), name)
        seen[name] = hashlib.sha256(Path(name).read_bytes()).hexdigest()
    with open("file.pt", "wb") as file:
        torch.save(state(), file)
    seen["file"] = hashlib.sha256(Path("file.pt").read_bytes()).hexdigest()
    with open("two.pt", "wb") as file:
        file.write(b"")
        torch.save(state(), file)
        at = file.tell()
        file.write(b"tail")
        torch.save(state(2.0), file)
    seen["two"] = [at, hashlib.sha256(Path("two.pt").read_bytes()).hexdigest()]
    seen["link"] = [os.path.islink("link.pt"), os.path.exists("pointed.pt")]
    os.chmod("plain.pt", 0o640)
    torch.save(state(), "plain.pt")
    seen["mode"] = oct(os.stat("plain.pt").st_mode & 0o777)
    torch.save(state(), "old.pt", _use_new_zipfile_serialization=False)
    seen["old"] = torch.load("old.pt")["n"]
    return seen


def appears_when_whole():
    before = saved(1.0, "a.pt")
    GATE.clear()
    torch.save(state(2.0), "a.pt")
    seen = {"meanwhile": raw("a.pt") == before, "others": raw(".").decode()}
    opened_soon()
    seen["loaded"] = torch.load("a.pt")["weight"][0].item()
    return seen


def copied():
    held = state(3.0)
    GATE.clear()
    torch.save(held, "a.pt")
    held["weight"].fill_(9.0)
    GATE.set()
    return torch.load("a.pt")["weight"][0].item()


def looks():
    """Every look waits for the file."""
    seen = {}
    for name, look in (
        ("exists", lambda: os.path.exists("new.pt")),
        ("size", lambda: os.path.getsize("new.pt") > 800_000),
        ("glob", lambda: [path.name for path in Path().glob("*.pt")] == ["new.pt"]),
        ("listdir", lambda: os.listdir(".") == ["new.pt"]),
        ("open", lambda: len(open("new.pt", "rb").read()) > 800_000),
        ("copy", lambda: os.path.getsize(shutil.copy("new.pt", "/dev/null") and "new.pt") > 0),
        ("process", lambda: int(subprocess.check_output(["stat", "-c", "%s", "new.pt"])) > 800_000),
        ("safetensors", lambda: Path("new.pt").is_file()),
    ):
        GATE.clear()
        torch.save(state(), "new.pt")
        early = raw("new.pt") is None
        opened_soon()
        seen[name] = early and look() and GATE.is_set()
        os.remove("new.pt")
    return seen


def replaced():
    """Written beside, put on the disk, renamed, the older one removed: all of it without waiting, in its order."""
    saved(1.0, "last.pt")
    saved(1.0, "older.pt")
    GATE.clear()
    with open("last.pt.tmp", "wb") as file:
        torch.save(state(2.0), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace("last.pt.tmp", "last.pt")
    Path("older.pt").unlink()
    seen = {"waited": GATE.is_set(), "meanwhile": torch_value(raw("last.pt")), "older": raw("older.pt") is not None}
    opened_soon()
    seen["exists"] = [os.path.exists(name) for name in ("last.pt", "last.pt.tmp", "older.pt")]
    seen["after"] = torch_value(raw("last.pt"))
    return seen


def torch_value(data):
    return torch.load(io.BytesIO(data))["weight"][0].item()


def follows():
    """What names the save or makes room for it is not there before it."""
    seen = {}
    os.mkdir("old")
    Path("latest").write_text("before")
    for name, change, before in (
        ("pointer", lambda: Path("latest").write_text("new.pt"), lambda: raw("latest") == b"before"),
        ("marker", lambda: Path("done").touch(), lambda: raw("done") is None),
        ("link", lambda: os.symlink("new.pt", "link"), lambda: b"link" not in raw(".")),
        ("folder", lambda: shutil.rmtree("old"), lambda: b"old" in raw(".")),
    ):
        GATE.clear()
        torch.save(state(), "new.pt")
        held = []
        thread = threading.Thread(target=lambda held=held, before=before: (threading.Event().wait(0.3), held.append(before()), GATE.set()))
        thread.start()
        change()
        thread.join()
        seen[name] = held[0]
    return seen


def fails():
    before = saved(1.0, "a.pt")
    saved(1.0, "older.pt")
    seen = {}
    FAIL.append(errno.ENOSPC)
    GATE.clear()
    with open("a.pt.tmp", "wb") as file:
        torch.save(state(2.0), file)
    os.replace("a.pt.tmp", "a.pt")
    os.remove("older.pt")
    GATE.set()
    try:
        torch.save(state(3.0), "b.pt")
        os.path.exists("b.pt")
        torch.save(state(3.0), "b.pt")
    except OSError as error:
        seen["told"] = [error.errno, *error.__notes__]
    FAIL.clear()
    seen["stays"] = [raw("a.pt") == before, raw("older.pt") is not None]
    torch.save(state(4.0), "c.pt")
    seen["goes on"] = torch.load("c.pt")["weight"][0].item()
    FAIL.append(errno.EIO)
    torch.save(state(6.0), "d.pt")
    try:
        shutil.rmtree("nowhere")
    except OSError as error:
        seen["no removal"] = error.errno
    FAIL.clear()
    try:
        torch.save({"a": lambda: 0}, "e.pt")
    except Exception as error:  # noqa: BLE001 - whatever torch raises
        seen["unpicklable"] = [type(error).__name__, os.path.exists("e.pt")]
    try:
        torch.save(state(), "nowhere/f.pt")
    except Exception as error:  # noqa: BLE001 - whatever torch raises
        seen["nowhere"] = type(error).__name__
    return seen


def forked():
    GATE.clear()
    torch.save(state(), "parents.pt")
    child = os.fork()
    if child == 0:
        early = not os.path.exists("parents.pt")
        FAIL.clear()
        torch.save(state(), "childs.pt")
        os._exit(0 if early and raw("childs.pt") else 1)
    code = os.waitpid(child, 0)[1]
    GATE.set()
    return [code, os.path.exists("parents.pt")]


def main():
    seen = {}
    home = os.getcwd()
    for name in sys.argv[1:]:
        os.makedirs(name)
        os.chdir(name)
        seen[name] = globals()[name]()
        GATE.set()
        os.chdir(home)
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
