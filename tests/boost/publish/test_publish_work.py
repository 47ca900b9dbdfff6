"""The publisher: what it makes, what it refuses, and that the model before stays current whatever happens."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pubs
import pytest
import torch

from ettrain.boost.publish import exports, launch, progress, work
from ettrain.boost.publish.target import Place
from ettrain.errors import UsageError

pubmodels = pubs.pubmodels


@pytest.fixture
def live():
    return pubs.trained()


@pytest.fixture
def checkpoint(tmp_path, live):
    return pubs.save(tmp_path / "ck", 120, *live)[0]


@pytest.fixture
def before(tmp_path, monkeypatch):
    """A model that is current already."""
    model, _ = pubs.trained(seed=9)
    path, _ = pubs.save(tmp_path / "old", 7, model)
    assert pubs.obey(pubs.ask(monkeypatch, path, tmp_path / "to", live=model, export=pubmodels.weights_only)).state == "published"
    return pubs.target(tmp_path / "to").current_version()


def manifest(to):
    return json.loads((Path(to) / "ranker" / "current" / "manifest.json").read_text())


def test_the_published_program_answers_as_the_training_model_at_any_batch_size(tmp_path, monkeypatch, live, checkpoint):
    publication = pubs.ask(monkeypatch, checkpoint, tmp_path / "to", live=live[0], metrics={"auc": 0.8})
    assert pubs.obey(publication).state == "published"
    served = exports.load_export(publication.current)
    for rows in (5, 12, 40):
        assert torch.allclose(served(*pubmodels.batch(rows)), live[0](*pubmodels.batch(rows)))
    told = manifest(tmp_path / "to")
    assert told["checkpoint"]["step"] == 120 and told["checkpoint"]["position"] == {"epoch": 1, "samples": 64}
    assert told["checkpoint"]["verified"] == "checksums of 2 files"
    assert told["metrics"] == {"auc": 0.8} and told["verification"]["worst"] == 0.0
    assert told["files"]["model.pt2"]["bytes"] == (publication.current / "model.pt2").stat().st_size
    assert {"torch", "ettrain"} <= set(told["versions"]) and told["cpu_s"] > 0
    assert not (publication.folder / "work").exists()


def test_a_checkpoint_of_a_plain_dcp_save_is_published(tmp_path, monkeypatch, live):
    path = pubs.write(tmp_path / "step-40", *live)
    assert pubs.obey(pubs.ask(monkeypatch, path, tmp_path / "to", live=live[0], export=pubmodels.weights_only)).state == "published"
    assert manifest(tmp_path / "to")["checkpoint"]["step"] == 40
    assert "no checksums" in manifest(tmp_path / "to")["checkpoint"]["verified"]


def test_of_a_folder_of_checkpoints_the_newest_is_published(tmp_path, monkeypatch, live, checkpoint):
    newer, _ = pubs.save(tmp_path / "ck", 130, live[0])
    assert pubs.ask(monkeypatch, tmp_path / "ck", tmp_path / "to", live=live[0]).request.checkpoint == newer


def test_only_the_models_part_of_the_checkpoint_is_read(tmp_path, monkeypatch, live, checkpoint):
    path = pubs.write(tmp_path / "plain", *live)
    from ettrain.boost.checkpoint import reading

    found = reading.reader_of(path).metadata()
    with open(f"{path}/__0_0.distcp", "r+b") as file:
        for index, info in found.storage_data.items():
            if index.fqn.startswith("optimizer."):
                file.seek(info.offset)
                file.write(b"\0" * info.length)
    assert pubs.obey(pubs.ask(monkeypatch, path, tmp_path / "to", live=live[0], export=pubmodels.weights_only)).state == "published"


@pytest.mark.parametrize("prefix", ["", "state.net."])
def test_what_stands_before_the_models_keys_is_found(tmp_path, monkeypatch, live, prefix):
    pubs.write_state(tmp_path / "ck", {prefix + name: one for name, one in live[0].state_dict().items()})
    assert (
        pubs.obey(pubs.ask(monkeypatch, tmp_path / "ck", tmp_path / "to", live=live[0], export=pubmodels.weights_only)).state == "published"
    )
    assert manifest(tmp_path / "to")["checkpoint"]["prefix"] == prefix


def test_tied_weights_and_outputs_in_dicts(tmp_path, monkeypatch):
    model, _ = pubs.trained(pubmodels.build_tied)
    path = pubs.write(tmp_path / "ck", model)
    publication = pubs.ask(
        monkeypatch, path, tmp_path / "to", live=model, model=pubmodels.build_tied, batch={"ids": torch.arange(8).reshape(2, 4)}
    )
    assert pubs.obey(publication).state == "published"


def test_eight_bit_weights_are_smaller_and_their_error_is_told(tmp_path, monkeypatch, live, checkpoint):
    publication = pubs.ask(monkeypatch, checkpoint, tmp_path / "to", live=live[0], export="int8")
    assert pubs.obey(publication).state == "published"
    told = manifest(tmp_path / "to")
    assert told["export"]["quantized"] == {"EmbeddingBag": 1, "Linear": 2}
    assert 0 < told["verification"]["worst"] < 0.02
    served = exports.load_export(publication.current)
    assert torch.allclose(served(*pubmodels.batch(30)), live[0](*pubmodels.batch(30)), atol=0.02)


@pytest.mark.slow
def test_a_compiled_package_answers_as_the_training_model(tmp_path, monkeypatch, live, checkpoint):
    publication = pubs.ask(monkeypatch, checkpoint, tmp_path / "to", live=live[0], export="aoti")
    ended = subprocess.run(
        launch.words(Place(publication.folder), sys.executable),
        capture_output=True,
        text=True,
        env=launch.environment(os.environ),
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    served = exports.load_compiled(publication.current)
    for rows in (5, 40):
        assert torch.allclose(served(*pubmodels.batch(rows)), live[0](*pubmodels.batch(rows)), atol=1e-5)


# ---- refused


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"reference": torch.zeros(12, 1)}, "read from the checkpoint\\) answers otherwise|filled from the checkpoint answers otherwise"),
        ({"reference": torch.zeros(3, 1)}, "has shape \\[12, 1\\], the training model gave \\[3, 1\\]"),
        ({"model": pubmodels.build_wider}, "table.weight has shape \\[500, 8\\], the model's has \\[500, 9\\]"),
        ({"model": pubmodels.build_tied}, "it lacks model.embed.weight"),
        ({"model": "pubmodels:absent"}, "there is no 'absent'"),
        ({"model": "no_such_module:build"}, "cannot be imported by the publisher"),
        ({"model": pubmodels.batch}, "returned a tuple, not a torch.nn.Module"),
        ({"export": pubmodels.wrong}, "the exported model .* answers otherwise"),
        ({"memory": "100MiB", "export": "aoti"}, "memory=100MiB: export='aoti' of a model of 1MiB needs about .*MiB. Say memory="),
        ({"export": pubmodels.nothing}, "wrote nothing to the folder"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_not_tried_again_and_the_model_before_stays(tmp_path, monkeypatch, live, checkpoint, before, more, why):
    import re

    publication = pubs.ask(monkeypatch, checkpoint, tmp_path / "to", **{"live": live[0], "export": pubmodels.weights_only, **more})
    status = pubs.obey(publication)
    assert status.state == "failed" and re.search(why, status.why), status
    assert status.tries == 1
    assert pubs.target(tmp_path / "to").current_version() == before


def test_a_damaged_checkpoint_is_not_published(tmp_path, monkeypatch, live, checkpoint, before):
    publication = pubs.ask(monkeypatch, checkpoint, tmp_path / "to", live=live[0])
    with open(f"{checkpoint}/__0_0.distcp", "r+b") as file:
        file.seek(1000)
        file.write(b"\xff")
    status = pubs.obey(publication)
    assert status.state == "failed" and "__0_0.distcp is damaged: its checksum" in status.why
    assert pubs.target(tmp_path / "to").current_version() == before


def test_code_in_a_checkpoint_is_not_run(tmp_path, monkeypatch, live):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "crime"),))

    path = pubs.write(tmp_path / "plain", live[0])
    Path(path, ".metadata").write_bytes(pickle.dumps(Evil()))
    status = pubs.obey(pubs.ask(monkeypatch, path, tmp_path / "to", live=live[0]))
    assert status.state == "failed" and "nothing was run" in status.why
    assert not (tmp_path / "crime").exists()


def test_a_checkpoint_that_does_not_come_is_waited_for_only_so_long(tmp_path, monkeypatch, live):
    for path in (tmp_path / "none", tmp_path / "ck" / "step-00000009"):
        status = pubs.obey(pubs.ask(monkeypatch, path, tmp_path / "to", live=live[0], wait_s=0.1))
        assert status.state == "failed" and str(path) in status.why


def test_a_checkpoint_still_being_written_is_waited_for(tmp_path, monkeypatch, live):
    path, commit = pubs.save(tmp_path / "ck", 5, live[0], commit=False)
    publication = pubs.ask(monkeypatch, path, tmp_path / "to", live=live[0], export=pubmodels.weights_only)
    threading.Timer(0.7, commit).start()
    assert pubs.obey(publication).state == "published"


def test_without_recorded_outputs_the_export_is_held_against_the_checkpoint(tmp_path, monkeypatch, live, checkpoint):
    publication = pubs.ask(monkeypatch, checkpoint, tmp_path / "to", export=pubmodels.weights_only)
    assert pubs.obey(publication).state == "published"
    assert "were not recorded" in manifest(tmp_path / "to")["verification"]["against"]


def test_outputs_of_a_class_of_their_own_are_compared_as_what_they_hold(tmp_path, monkeypatch):
    model, _ = pubs.trained(pubmodels.build_answers)
    path = pubs.write(tmp_path / "ck", model)
    for reference in (None, model):
        publication = pubs.ask(
            monkeypatch, path, tmp_path / "to", model=pubmodels.build_answers, reference=reference, export=pubmodels.answers
        )
        assert pubs.obey(publication).state == "published"


def test_an_export_that_cannot_be_run_is_said_to_be_unverified(tmp_path, monkeypatch, live, checkpoint):
    assert pubs.obey(pubs.ask(monkeypatch, checkpoint, tmp_path / "to", live=live[0], export=pubmodels.blind)).state == "published"
    assert manifest(tmp_path / "to")["verification"]["exported"] is False


# ---- again


def test_the_same_request_twice_is_one_version(tmp_path, monkeypatch, live, checkpoint):
    first = pubs.ask(monkeypatch, checkpoint, tmp_path / "to", live=live[0], export=pubmodels.weights_only)
    pubs.obey(first)
    again = pubs.ask(monkeypatch, checkpoint, tmp_path / "to", live=live[0], export=pubmodels.weights_only)
    assert (first.new, again.new, again.id) == (True, False, first.id)
    length = len(pubs.states(first))
    assert pubs.obey(again).state == "published"
    assert len(pubs.states(first)) == length
    assert len(list(pubs.target(tmp_path / "to").versions.iterdir())) == 1


def test_what_may_mend_itself_is_tried_again_so_often_and_no_more(tmp_path, monkeypatch, live, checkpoint, before):
    mood = tmp_path / "mood"
    monkeypatch.setenv("ETT_TEST_MOOD", str(mood))
    mood.write_text("9")
    publication = pubs.ask(monkeypatch, checkpoint, tmp_path / "to", live=live[0], export=pubmodels.moody)
    status = pubs.obey(publication)
    assert (status.state, status.tries, status.why) == ("failed", 3, "OSError: mood 7")
    assert pubs.target(tmp_path / "to").current_version() == before
    mood.write_text("2")
    again = pubs.ask(monkeypatch, checkpoint, tmp_path / "to", live=live[0], export=pubmodels.moody)
    assert (again.new, pubs.obey(again).state, pubs.obey(again).tries) == (False, "published", 3)
    assert pubs.target(tmp_path / "to").current_version() != before


def test_what_was_asked_for_later_stays_current(tmp_path, monkeypatch, live, checkpoint):
    older = pubs.ask(monkeypatch, checkpoint, tmp_path / "to", live=live[0], export=pubmodels.weights_only)
    newer = pubs.ask(monkeypatch, checkpoint, tmp_path / "to", live=live[0], export=pubmodels.blind)
    current = pubs.obey(newer).version
    status = pubs.obey(older)
    assert status.state == "superseded" and current in status.why
    assert pubs.target(tmp_path / "to").current_version() == current


STAGES = ("checkpoint", "build", "load", "check", "export", "verify", "install", "switch")


@pytest.mark.parametrize("stage", STAGES)
def test_killed_at_any_stage_the_model_before_stays_and_another_run_goes_on(tmp_path, monkeypatch, live, checkpoint, before, stage):
    publication = pubs.ask(
        monkeypatch, checkpoint, tmp_path / "to", live=live[0], export="export" if stage == "verify" else pubmodels.weights_only
    )
    child = os.fork()
    if not child:
        torch.set_num_threads(1)  # the parent's threads are not there after a fork

        def say(line):
            if line == stage:
                os.kill(os.getpid(), signal.SIGKILL)

        work.Publisher(Place(publication.folder), say=say).run()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert publication.status.state == "interrupted"
    assert pubs.target(tmp_path / "to").current_version() == before
    assert (pubs.target(tmp_path / "to").current / "manifest.json").exists()
    went_through = []
    status = work.Publisher(Place(publication.folder), say=went_through.append).run()
    assert status.state == "published"
    assert pubs.target(tmp_path / "to").current_version() == status.version
    if stage == "verify":
        assert "export" not in went_through, "what was exported is not exported again"
    if stage == "switch":
        assert "load" not in went_through


def test_publishers_of_one_model_take_turns(tmp_path, monkeypatch, live, checkpoint):
    first = pubs.ask(monkeypatch, checkpoint, tmp_path / "to", live=live[0], export=pubmodels.weights_only)
    with pubs.target(tmp_path / "to").alone() as alone:
        assert alone
        thread = threading.Thread(target=pubs.obey, args=(first,))
        thread.start()
        time.sleep(0.7)
        assert first.status.stage == "turn" and first.status.state == "running"
    thread.join(30)
    assert first.status.state == "published"


def test_one_request_is_worked_on_once(tmp_path, monkeypatch, live, checkpoint):
    first = pubs.ask(monkeypatch, checkpoint, tmp_path / "to", live=live[0], export=pubmodels.weights_only)
    with Place(first.folder).claimed() as mine:
        assert mine
        said = []
        work.Publisher(Place(first.folder), say=said.append).run()
        assert said == ["another process works on this request"]


# ---- what cannot be asked for


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"model": lambda: None}, "is a lambda"),
        ({"model": "pubmodels.build"}, "write 'module:function'"),
        ({"export": "onnx"}, "choose one of export, aoti, int8"),
        ({"name": "a/b"}, "use letters"),
        ({"where": "moon"}, "choose one of process, slurm, k8s"),
        ({"memory": "lots"}, "write e.g. '2GiB'"),
        ({"to": "s3://models"}, "is an address"),
        ({"batch": (object(),)}, "holds a object"),
        ({"tries": 0}, "at least 1"),
        ({"where": "k8s"}, "name the image"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_obeyed_is_refused_where_it_is_made(tmp_path, monkeypatch, more, why):
    with pytest.raises(UsageError, match=why):
        pubs.ask(monkeypatch, tmp_path / "ck", more.pop("to", tmp_path / "to"), **more)
    assert not (tmp_path / "to").exists()


def test_a_function_inside_a_function_is_refused(tmp_path, monkeypatch):
    def local():
        return None

    with pytest.raises(UsageError, match="defined inside a function, which another process cannot find"):
        pubs.ask(monkeypatch, tmp_path / "ck", tmp_path / "to", model=local)


def test_a_request_that_was_altered_is_refused(tmp_path, monkeypatch, live, checkpoint):
    publication = pubs.ask(monkeypatch, checkpoint, tmp_path / "to", live=live[0])
    file = publication.folder / "request.json"
    file.write_text(file.read_text().replace('"ranker"', '"rankor"'))
    with pytest.raises(UsageError, match="was altered"):
        Place(publication.folder).request()


def test_the_programs_own_folders_are_handed_on_also_below_the_interpreters(tmp_path, monkeypatch, live, checkpoint):
    home = tmp_path / "usr" / "src" / "app"
    home.mkdir(parents=True)
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "usr"))
    monkeypatch.setattr(sys, "path", [str(home), *sys.path])
    paths = pubs.ask(monkeypatch, checkpoint, tmp_path / "to", live=live[0]).request.paths
    assert str(home) in paths and str(pubs.PROGRAMS) in paths
    assert not any(path.endswith("site-packages") for path in paths)


def test_other_ranks_ask_for_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert pubs.ask(monkeypatch, tmp_path / "ck", tmp_path / "to") is None


def test_torn_word_of_a_change_is_passed_over(tmp_path, monkeypatch, live, checkpoint):
    publication = pubs.ask(monkeypatch, checkpoint, tmp_path / "to", live=live[0])
    with Place(publication.folder).state.open("ab") as file:
        file.write(b'{"t": 1, "sta')
    assert publication.status.state == progress.ASKED


def test_the_private_names_of_the_exports_are_those_of_this_torch():
    from importlib import import_module

    from ettrain.boost.publish import int8

    for table in (exports.PRIVATE, int8.PRIVATE):
        for module, names in table.items():
            for name in names:
                assert hasattr(import_module(module), name)


def test_a_file_of_torch_save_is_published_and_may_not_run_code_either(tmp_path, monkeypatch, live):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "crime"),))

    torch.save({"model": live[0].state_dict(), "step": 3, "optimizer": live[1].state_dict()}, tmp_path / "ck.pt")
    publication = pubs.ask(monkeypatch, tmp_path / "ck.pt", tmp_path / "to", live=live[0], export=pubmodels.weights_only, step=3)
    assert pubs.obey(publication).state == "published"
    assert manifest(tmp_path / "to")["checkpoint"]["step"] == 3
    torch.save({"model": live[0].state_dict(), "more": Evil()}, tmp_path / "evil.pt")
    status = pubs.obey(pubs.ask(monkeypatch, tmp_path / "evil.pt", tmp_path / "to", live=live[0]))
    assert status.state == "failed" and "without running code" in status.why
    assert not (tmp_path / "crime").exists()


def test_a_model_is_built_with_the_arguments_it_was_trained_with(tmp_path, monkeypatch):
    model = pubmodels.Ranker(rows=600, width=5).eval()
    path = pubs.write(tmp_path / "ck", model)
    ask = {"model": pubmodels.Ranker, "live": model, "export": "export"}
    assert pubs.obey(pubs.ask(monkeypatch, path, tmp_path / "to", **ask, arguments={"rows": 600, "width": 5})).state == "published"
    assert "the model's has [600, 8]" in pubs.obey(pubs.ask(monkeypatch, path, tmp_path / "to", **ask, arguments={"rows": 600})).why
    with pytest.raises(UsageError, match="arguments: must be numbers"):
        pubs.ask(monkeypatch, path, tmp_path / "to", **ask, arguments={"rows": object()})


def test_retry_starts_what_failed_and_leaves_alone_what_is_published(tmp_path, monkeypatch, live, checkpoint, capsys):
    from ettrain.cli import main

    publication = pubs.ask(monkeypatch, checkpoint, tmp_path / "to", live=live[0], export=pubmodels.moody, tries=1)
    monkeypatch.setenv("ETT_TEST_MOOD", str(tmp_path / "mood"))
    (tmp_path / "mood").write_text("1")
    assert pubs.obey(publication).state == "failed"
    assert main(["publish", "wait", str(publication.folder)]) == 75
    assert f"Again: ett publish retry {publication.folder}" in capsys.readouterr().err
    assert main(["publish", "retry", str(publication.folder)]) == 0
    assert f"Next: ett publish wait {publication.folder}" in capsys.readouterr().out
    assert publication.status.state == "asked"
    assert pubs.obey(publication).state == "published"
    assert main(["publish", "retry", str(publication.folder)]) == 0
    assert "current" in capsys.readouterr().out and publication.status.state == "published"
    assert main(["publish", "wait", str(tmp_path / "to")]) == 0
    assert main(["publish", "ls", str(tmp_path / "nowhere"), "--runs", str(tmp_path)]) == 0
    assert "no publication in" in capsys.readouterr().out


def test_what_fails_to_verify_is_exported_anew_and_an_exit_of_the_models_code_is_a_failure(tmp_path, monkeypatch, live, checkpoint):
    publication = pubs.ask(monkeypatch, checkpoint, tmp_path / "to", live=live[0], export="int8", tolerance=(1e-9, 0.0))
    status = pubs.obey(publication)
    assert status.state == "failed" and "the exported model (int8) answers otherwise" in status.why
    assert not (publication.folder / "work" / "exported.json").exists()
    status = pubs.obey(pubs.ask(monkeypatch, checkpoint, tmp_path / "to", live=live[0], export=pubmodels.leaves, tries=1))
    assert (status.state, status.why) == ("failed", "SystemExit: 3")
