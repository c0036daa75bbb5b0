"""Whatever a handler does, the server gets an answer, and nothing it should not."""

import errno
import json
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from client_app.authority.node_config import NODE_CONFIG
from client_app.authority.policy import PolicyError
from client_app.errors import LEAVES, DataError
from client_app.release.guard import guard
from strategies.protocol.may_leave import Failure
from tests.fakes import context, deployment


def message(verb="train"):
    message = Message(RecordDict(), 1, verb)
    message.metadata.__dict__["_message_id"] = "m1"
    return message


def guarded(message, handler):
    return guard(message, context(0, 1, {}), handler)


def test_a_store_that_has_gone_since_the_start_is_not_begun_again(tmp_path, monkeypatch, caplog):
    """A new one would have other keys, an empty ledger and an unused privacy account."""
    own = {"site": "graz", "store-dir": str(tmp_path / "store")}
    monkeypatch.setenv(NODE_CONFIG, json.dumps(own))
    answer = guarded(message("query.live"), lambda m, c: Message(RecordDict(), reply_to=m))
    assert answer.error.reason == "The hospital's store cannot be used; its own log says why."
    assert f"{tmp_path}/store/graz has gone since the start: mount its disk" in caplog.text
    assert not (tmp_path / "store").exists()
    (tmp_path / "store" / "graz").mkdir(parents=True)
    assert not guarded(
        message("query.live"), lambda m, c: Message(RecordDict(), reply_to=m)
    ).has_error()


def test_a_good_answer_passes():
    content = RecordDict({"metrics": MetricRecord({"accuracy": 0.5})})
    answer = guarded(message("evaluate"), lambda m, c: Message(content, reply_to=m))
    assert answer.content == content


@pytest.mark.parametrize("error", [each for each in LEAVES if each is not PolicyError])
def test_errors_written_for_the_server_leave_with_their_text(error):
    def handler(message, context):
        raise error("the words")

    answer = guarded(message(), handler)
    assert (answer.error.code, answer.error.reason) == (LEAVES[error], "the words")


def test_of_a_rule_of_the_policy_only_its_table_leaves(caplog):
    def handler(message, context):
        raise PolicyError("release.min-quantile", 0, "0.01 or more")

    answer = guarded(message(), handler)
    assert answer.error.code == Failure.POLICY
    assert answer.error.reason == "The hospital's policy ([release]) does not allow it."
    assert "release.min-quantile allows 0.01 or more; the value is 0" in caplog.text


@pytest.mark.parametrize("error", [each for each in LEAVES if each is not PolicyError])
@pytest.mark.parametrize(
    "text",
    [
        "The setting 'ser.oracle' is '/ward 7/maps.npz'; it must be another.",
        "There is no file '/ward 7/x.npz'.",
        "/other/folder/a.npz is damaged.",
        "~/ward/x cannot be read",
        "The data set 'hf:ward-7/nevi' has no such column.",
        "An image of 'ward-7/nevi' cannot be used.",
    ],
)
def test_no_path_of_a_hospital_leaves_whatever_the_error(error, text, tmp_path, caplog):
    def handler(message, context):
        raise error(text)

    own = {"site": "graz", "store-dir": str(tmp_path)}
    own |= {"ser.oracle": "/ward 7/maps.npz", "dataset": "hf:ward-7/nevi"}
    place = deployment({"mah.auxiliary": "public:/shared/x.npz"}, **own)
    answer = guard(message(), place, handler)
    assert answer.error.code == LEAVES[error]
    assert answer.error.reason == "The hospital's files cannot be used; its own log says why."
    assert text in caplog.text


def test_what_an_error_tells_the_hospital_alone_does_not_leave(tmp_path, caplog):
    def handler(message, context):
        raise DataError("An image cannot be used.", "Image 7 has 2 x 200 pixels.")

    place = deployment({}, **{"site": "graz", "store-dir": str(tmp_path)})
    answer = guard(message(), place, handler)
    assert answer.error.reason == "An image cannot be used."
    assert "An image cannot be used. Image 7 has 2 x 200 pixels." in caplog.text


@pytest.mark.parametrize("text", ["'mah.auxiliary' is 'public:/shared/x.npz'", "1 / 2 a/b, x/"])
def test_what_the_run_names_is_told(text, tmp_path, caplog):
    """To the server, and in the hospital's own log."""

    def handler(message, context):
        raise DataError(text)

    own = {"site": "graz", "store-dir": str(tmp_path)}
    place = deployment({"mah.auxiliary": "public:/shared/x.npz"}, **own)
    assert guard(message(), place, handler).error.reason == text
    assert text in caplog.text


def test_of_any_other_error_only_the_type_leaves(caplog):
    def handler(message, context):
        raise FileNotFoundError("/data/patients/Jane Doe.dcm")

    answer = guarded(message(), handler)
    assert answer.error.code == Failure.CRASHED
    assert answer.error.reason == "FileNotFoundError; the hospital's own log has the details."


@pytest.mark.parametrize("made", [torch.empty, np.empty])
def test_a_lack_of_memory_is_told_with_its_cure(made, caplog):
    def handler(message, context):
        made(2**50)

    answer = guarded(message(), handler)
    assert answer.error.code == Failure.CRASHED
    assert answer.error.reason.startswith("Memory ran out at the hospital: choose a smaller image-")
    assert "or give the hospital more memory (" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_subclass_of_a_known_error_leaves_like_it():
    class SpecialError(DataError):
        pass

    def handler(message, context):
        raise SpecialError("the words")

    assert guarded(message(), handler).error.code == Failure.DATA


@pytest.mark.parametrize("answer", [None, "text", Message])
def test_a_handler_that_gives_no_answer_is_answered_for(answer):
    if answer is Message:  # a message, but not an answer to the one that came
        answer = Message(RecordDict(), 1, "train")
    assert guarded(message(), lambda m, c: answer).has_error()


def test_an_undeclared_record_does_not_leave():
    content = RecordDict({"images": ArrayRecord()})
    answer = guarded(message(), lambda m, c: Message(content, reply_to=m))
    assert answer.error.code == Failure.UNDECLARED
    assert "'images' may not leave" in str(answer.error.reason)


def test_a_process_that_is_asked_to_end_answers_first():
    def handler(message, context):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        except Exception:  # as in libraries
            return None

    before = signal.getsignal(signal.SIGTERM)
    assert guarded(message(), handler).error.code == Failure.CRASHED
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_handler_may_run_in_any_thread():
    answers = []
    content = RecordDict({"metrics": MetricRecord({"accuracy": 0.5})})
    handle = lambda m, c: Message(content, reply_to=m)  # noqa: E731
    thread = threading.Thread(target=lambda: answers.append(guarded(message("evaluate"), handle)))
    thread.start()
    thread.join()
    assert answers[0].content == content


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_of_a_disk_that_takes_nothing_the_server_learns_why_and_no_path(number, caplog):
    def handler(message, context):
        raise OSError(number, "words", "/data/patients/Jane Doe.npz")

    reason = guarded(message(), handler).error.reason
    assert reason.startswith("The hospital cannot write to its disk or folders: ")
    assert os.strerror(number) in reason
    assert "Jane" not in reason
    assert "Jane Doe.npz" in caplog.text
    assert "Traceback" not in caplog.text
