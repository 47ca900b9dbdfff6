"""The Checkpointer on an object store that speaks S3 over HTTP (moto's server): saved, pruned, restored, damaged and passed over."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("s3fs", reason="s3fs is not installed: pip install s3fs 'moto[server]' runs the Checkpointer against a real S3 server")
pytest.importorskip("moto", reason="moto is not installed: pip install s3fs 'moto[server]' runs the Checkpointer against a real S3 server")

PROGRAM = """
import sys, torch, s3fs
from trainings import same, tensors, train, training
files = s3fs.S3FileSystem()
files.mkdir("bucket")
one = training("s3://bucket/job", every=3, keep=2)
assert one.checkpointer.restore() == 0
train(one, 10)
one.checkpointer.close()
saved = tensors(one)
print(sorted(path.rpartition("/")[0] for path in files.find("bucket") if path.endswith("manifest.json")))
two = training("s3://bucket/job", seed=4)
step = two.checkpointer.restore()
next(iter(two.checkpointer.steps()))
restored = tensors(two)
print(step, all(torch.equal(saved[name], restored[name]) for name in saved if name != "generator"))
two.checkpointer._release()
path = "bucket/job/step-00000010/__0_0.distcp"
data = bytearray(files.cat(path))
data[500] ^= 4
files.pipe(path, bytes(data))
three = training("s3://bucket/job", seed=4)
print(three.checkpointer.restore())
three.checkpointer._release()
"""


@pytest.fixture
def server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def test_an_object_store_keeps_verifies_and_gives_back(server):
    env = os.environ | {
        "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": server,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['bucket/job/step-00000009', 'bucket/job/step-00000010']", "10 True", "9"]
    assert "passed over step-00000010: __0_0.distcp is damaged" in done.stderr
