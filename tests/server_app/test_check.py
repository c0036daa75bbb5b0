"""What can be known of a run before it starts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w
import torch
from flwr.app import Message, RecordDict

from client_app.app import app
from client_app.datasets import DATASETS
from learning.models import Architecture
from server_app import check as module
from server_app.check import check
from server_app.notices import notices
from server_app.results import Results
from strategies.protocol.code import code_hash
from strategies.protocol.data_sets import KINDS
from strategies.protocol.files import FileError
from strategies.protocol.order import Order
from strategies.protocol.records import to_record
from strategies.protocol.run_config import changes_of, read_config
from strategies.protocol.settings import Settings, SettingsError, complete, defaults
from strategies.registry import STRATEGIES, strategy_of
from tests.fakes import NETWORKS, context, write_archive

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    """The default of output-dir is in there."""
    monkeypatch.setenv("HOME", str(tmp_path))


def judged(text, **how):
    return check(complete(changes_of([text])), **how)


def refused(text, **how):
    with pytest.raises(SettingsError) as error:
        judged(text, **how)
    return str(error.value)


def test_it_knows_what_the_hospitals_know():
    known = [f"{name}:" if kind.rest else name for name, kind in KINDS.items()]
    assert known == list(DATASETS), "strategies/protocol/data_sets.py has another list"


def refusal_of_a_hospital(text, store):
    """What the first of two simulated hospitals answers when it enrols and prepares."""
    config = complete(changes_of([text]))
    place = context(0, 2, config, **{"store-dir": str(store)})
    for verb in ("query.enrol", "query.prepare"):
        classes = [] if verb == "query.enrol" else [str(k) for k in range(10)]
        order = Order(1, 0, "", classes, "plain", "run", code=code_hash())
        answer = app(Message(RecordDict({"order": to_record(order)}), 100, verb, ttl=60.0), place)
        if answer.has_error():
            return str(answer.error.reason)
    return ""


WEIGHTS = "strategy='cwt' model='resnet18' pretrained='{file}'"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file of weights, and one that is none."""
    folder = tmp_path_factory.mktemp("files")
    files = {"file": folder / "resnet18.pth", "junk": folder / "junk.pth"}
    torch.save(Architecture("resnet18", 3, 32, 32, 2).build().state_dict(), files["file"])
    files["junk"].write_text("junk")
    return files


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{WEIGHTS} image-channels=3 image-size=32", ""),
        (WEIGHTS, "set 'image-channels' to 3"),
        (f"{WEIGHTS} pixels='unit'", "set 'image-channels' to 3"),
        (f"{WEIGHTS} train.freeze='body'", "set 'image-channels' to 3"),
        (f"{WEIGHTS} image-channels=3 model='resnet34'", "are not the state dict of torchvision's"),
        (f"{WEIGHTS} image-channels=3 pretrained='{{junk}}'", "cannot be read"),
        ("strategy='cwt' model='resnet18' pretrained='imagenet'", "set 'image-channels' to 3"),
        ("strategy='cwt' pixels='imagenet'", "set 'image-channels' to 3"),
        ("strategy='cwt' partition='classes' partition-classes=5", ""),
        ("strategy='cwt' partition='classes' partition-classes=4", "partition-classes"),
        ("strategy='cwt' partition='classes' partition-classes=11", "partition-classes"),
        ("strategy='cwt' classes='benign,malignant'", "classes"),
        ("strategy='cwt' test-fraction=0", "'test-fraction' is 0"),
    ],
)
def test_what_hospitals_refuse_at_enrolment_is_known_before(text, words, files, tmp_path):
    """The images of 'digits' are grey, and have ten classes."""
    chosen = {each.split("=")[0]: each for each in text.format(**files).split()}  # the last counts
    text = " ".join(chosen.values())
    answer = refusal_of_a_hospital(text, tmp_path / "store")
    if not words:
        assert answer == ""
        assert judged(text, hospitals=2)
    else:
        assert words in answer
        assert words in refused(text, hospitals=2)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_defaults_can_be_used_with_every_method(strategy):
    network = NETWORKS.get(strategy, "cnn")
    freeze = "body" if strategy == "sums" else "none"
    chosen = f"strategy='{strategy}' model='{network}' image-size=16 train.freeze='{freeze}'"
    assert judged(chosen, hospitals=2).strategy == strategy


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train.epoch=5", "There is no setting 'train.epoch' (here 5); did you mean 'train.epochs"),
        ("num-rounds=4", "did you mean 'num-server-rounds'?"),
        ("qqq=1", "There is no setting 'qqq' (here 1); pyproject.toml lists all."),
        ("strategy=cwt", "strategy=cwt is not a number, true or false, and a text needs quotes:"),
        (
            "test-fraction=.5",
            "test-fraction=.5 is not a number, true or false, and a text needs quotes.",
        ),
        ("baseline='feder'", "must be one of '', standalone."),
        ("dataset='hf:'", "must be one of digits, mnist, "),
        ("train.epochs = 5", "'train.epochs = 5' is not a setting: write key=value, without"),
        ("train.epochs=5 train.epochs=6", "train.epochs is there twice, as 5 and as 6: keep one."),
        ("learning-rate=1", "did you mean 'train.learning-rate'?"),  # ser has one, too
        ("classes=','", "'classes' is ','; it must be two or more different names, or empty."),
        ("strategy='fedavg' enrolment='S5'", "'S5': it is not an absolute path. It must be S1, "),
        ("seed=[1,2]", "--run-config cannot be read: "),
        ("nowhere.toml", "--run-config names nowhere.toml, which cannot be read: No such file"),
        ("train.epochs=0", "'train.epochs' is 0; it must be 1 to 100000"),
        ("train.epochs='many'", "'train.epochs' is 'many'; it must be a whole number"),
        ("train.augment='flap'", "'train.augment' is 'flap'; it must be one of none, flip"),
        ("strategy='cwt' asynchronous=true", "must be false with the strategy 'cwt': on its fixed"),
        ("async.choose='longest'", "'async.choose' is 'longest'; it must be one of shortest"),
        ("async.seconds='1,0'", "'async.seconds' is '1,0'; it must be numbers above 0"),
        (
            "async.replay='/nowhere'",
            "'async.replay' is '/nowhere'; it must be the result directory",
        ),
        ("strategy='feddr'", "'strategy' is 'feddr'; it must be one of centralized"),
        ("strategy='cwc' cwc.decay=2", "'cwc.decay' is 2; it must be 0 to 1"),
        ("feder.replay-weight=1", "'feder.replay-weight' is 1; it must be 0 or more, and below"),
        ("strategy='fedprox' fedprox.mu=-1", "'fedprox.mu' is -1; it must be 0 or more"),
        ("strategy='fedrewind' rewind.fraction=0.4", "rewind.fraction = 0.4"),
        ("strategy='fedrewind' rewind.batch-norm='x'", "'rewind.batch-norm' is 'x'"),
        (
            "strategy='centralized' centralized.data='synthetic' feder.buffer-size=0",
            "'feder.buffer-size' is 0; it must be 1 or more with centralized.data 'synthetic'",
        ),
        (
            "strategy='fil-ver' model='vee' filver.offline=true num-server-rounds=1",
            "'num-server-rounds' is 1; it must be 2 or more with filver.offline",
        ),
        (
            "strategy='fedavg' enrolment='S4' tasks=4 task-cut='permuted'",
            "'enrolment' is 'S4': no hospital is active in task 4",
        ),
        (
            "strategy='fedavg' wire-dtype='float16'",
            "'wire-dtype' is 'float16'; it must be float32",
        ),
        ("gan.preset='huge'", "'gan.preset' is 'huge'; it must be one of tiny, small"),
        ("image-size=64", "'gan.preset' is 'tiny', for images of 16 pixels"),
        ("dataset='didgits'", "'dataset' is 'didgits'; it must be one of digits, mnist, npz:<abs"),
        ("dataset='digits:'", "'dataset' is 'digits:'; it must be one of"),
        ("dataset='npz:/no/x.npz'", "must be an absolute path; there is no file '/no/x.npz'"),
        ("dataset='hf:/no'", "must be an absolute path; there is no folder '/no'"),
        ("dataset='folder:images'", "must be an absolute path; there is no folder 'images'"),
        ("dataset='manifest:/no'", "there is no folder or file '/no'"),
        ("tasks=3", "'task-classes' is 0; it must be 1 to 3 with 10 classes in 3 tasks"),
        ("tasks=2 task-cut='given'", "'task-cut' is 'given'; it must be another value unless the"),
        ("tasks=2 classes='a,b,c'", "'task-classes' is 0; it must be 1 to 1 with 3 classes"),
        ("partition='site'", "'partition' is 'site', and the data set does not say"),
        (
            "pretrained='imagenet'",
            "'pretrained' is 'imagenet'; it must be an exported model (*.safetensors), or empty",
        ),
        (
            "gan.lpips-weights='/no'",
            "'gan.lpips-weights' is '/no'; it must be an existing file",
        ),
        (
            "mah.auxiliary='public:/no'",
            "'mah.auxiliary' is 'public:/no'; it must be an existing file",
        ),
        ("strategy='rwt' learner='mah' tasks=5", "'mah.auxiliary' is ''; it must be public:"),
        (
            "strategy='rwt' learner='icarl' tasks=5 reservoir.size=9",
            "'reservoir.size' is 9; it must be 2 or more for icarl, and at least the number of cl",
        ),
        ("strategy='fedavg' model='cnn,mlp'", "'model' is 'cnn,mlp'; it must be one network"),
        ("model='densenet121'", "The model 'densenet121' cannot take 1x8x8 images"),
        ("min-hospitals=5", "'min-hospitals' is 5; it must be at most the number of hospitals"),
        (
            "resume='/no'",
            "'resume' is '/no'; it must be the result directory of a run that has not",
        ),
        ("output-dir='/dev/null/runs'", "'output-dir' is '/dev/null/runs'; it must be a folder"),
        ("output-dir='~nobody-of-this-name/runs'", "'output-dir' is '~nobody"),
    ],
)
def test_what_cannot_be_used_is_named(text, words):
    assert words in refused(text, hospitals=3)


def test_unused_settings_of_other_methods_are_not_judged():
    assert judged("strategy='cwt' cwc.decay=2 gan.preset='huge'")


def test_several_folders_are_one_for_each_hospital(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.csv").touch()
    several = f"dataset='manifest:{tmp_path}/a, {tmp_path}/b/manifest.csv'"
    assert "'partition' is 'dirichlet'; it must be site for several" in refused(several)
    assert judged(f"{several} partition='site'")
    assert judged(f"{several} partition='site' tasks=3 task-cut='given'")
    assert judged(f"{several} partition='site'", hospitals=2)
    twice = f"dataset='manifest:{tmp_path}/a, {tmp_path}/b/../a/manifest.csv' partition='site'"
    assert "it must be another folder or manifest for each hospital" in refused(twice)
    words = refused(f"{several} partition='site'", hospitals=3)
    assert "it must be one folder for each of 3 hospitals, not 2" in words
    one = f"dataset='folder:{tmp_path}/a' partition='site'"
    assert "'partition' is 'site'" in refused(one, hospitals=2)
    assert judged(one + " min-hospitals=1", hospitals=1)
    (tmp_path / "Graz, Ost").mkdir()
    assert judged(f"dataset='folder:{tmp_path}/Graz, Ost' min-hospitals=1", hospitals=1)
    for dataset in ("digits", "mnist"):  # which know no sites, whoever has them
        words = refused(f"dataset='{dataset}' partition='site' min-hospitals=1", hospitals=1)
        assert "the data set does not say which site" in words


def test_an_archive_may_name_sites(tmp_path):
    write_archive(tmp_path / "x.npz", 4)
    assert judged(f"dataset='npz:{tmp_path}/x.npz' partition='site'")


def test_a_deployment_has_images_and_folders_elsewhere_and_seals_parcels():
    elsewhere = "dataset='folder:/no' output-dir='/dev/null/runs' resume='/no'"
    assert judged(elsewhere, simulated=False)
    assert "'sealed' is true; it must be false" in refused("strategy='fedavg'", simulated=False)
    assert judged("strategy='fedavg' sealed=false", simulated=False)
    pooled = "strategy='fil-ver' model='vee' sealed=false filver.pretrain='pooled'"
    for text in ("strategy='centralized'", pooled):
        assert "one whose images stay at the hospitals" in refused(text, simulated=False)
    assert judged("strategy='centralized' centralized.data='synthetic'", simulated=False)


def test_models_of_torchvision_are_known_by_name_and_by_the_images_they_take():
    assert judged("model='cnn,resnet18' image-size=32 feder.buffer-size=0")
    words = refused("model='resnet81'")
    assert "The setting 'model' is 'resnet81'. There is no model 'resnet81'" in words
    words = refused("model='inception_v3' image-size=32 feder.buffer-size=0")
    assert "The model 'inception_v3' cannot take 1x32x32 images" in words


def test_a_run_can_only_be_resumed_with_its_own_settings(tmp_path):
    results, _ = Results.open(Settings.parse(complete({"output-dir": str(tmp_path)})))
    resume = f"output-dir='{tmp_path}' resume='{results.path}'"
    assert "'resume' is" in refused(resume)  # nothing is kept yet
    (results.path / "checkpoint" / "state.json").touch()
    assert judged(resume)
    assert judged(resume + " workers=1")  # with too many of them, memory runs out
    assert "'train.epochs' is 7, but the run to resume has 3" in refused(resume + " train.epochs=7")


def test_a_file_is_read_as_flower_reads_it(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(tomli_w.dumps({"strategy": "cwt", "train": {"epochs": 4}}))
    assert changes_of([str(path)]) == {"strategy": "cwt", "train.epochs": 4}
    assert changes_of(["strategy='cwt'", "train.epochs=4"]) == changes_of([str(path)])
    with pytest.raises(SettingsError, match="takes either"):
        changes_of([str(path), "seed=1"])
    assert changes_of([]) == {}
    path.write_text("a." * 3000 + "b = 1\n")
    with pytest.raises(SettingsError, match="a key has too many dots"):
        changes_of([str(path)])
    with pytest.raises(FileError, match="a key has too many dots"):
        read_config(path)
    assert complete({}) == defaults()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("gan.preset='small' image-size=64", []),
        ("gan.preset='xray-256' image-size=256", ["861 hours or more"]),
        ("gan.preset='skin-256' image-size=256 gan.iterations=100", ["about 9 hours or more"]),
        ("image-size=256 gan.method='dp-mean-embedding' gan.epsilon=2.0", []),
        (
            "gan.preset='small' image-size=64 gan.method='dp-mean-embedding'",
            ["'gan.preset' is 'small', and is not read: 'gan.method' is 'dp-mean-embedding'"],
        ),
        ("train.freeze='body' image-size=224 gan.method='class-gaussians'", []),
        ("gan.epsilon=2.0", ["'gan.epsilon' is 2.0, and is not read: 'gan.method' is 'stylegan2"]),
        (
            "gan.sampler='lci' gan.k=6 gan.method='dp-mean-embedding'",
            ["'gan.k' is 6", "'gan.sampler' is 'lci', and is not read: 'gan.method' is 'dp"],
        ),
        ("strategy='cwt' gan.sampler='plan'", ["is not read: this run makes no synthetic images"]),
    ],
)
def test_a_run_that_takes_hours_or_does_not_read_a_setting_is_told(text, words, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    settings = judged(text)
    found = notices(settings, strategy_of(settings), simulated=True)
    assert len(found) == len(words)
    assert all(word in notice for word, notice in zip(words, found, strict=True))


def test_a_machine_with_a_gpu_takes_no_hours(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    settings = judged("gan.preset='xray-256' image-size=256")
    assert notices(settings, strategy_of(settings), simulated=True) == []


@pytest.mark.parametrize(
    ("strategy", "rounds", "told"),
    [
        *((name, 1, True) for name in ("cwt", "feder", "fedrewind", "rwt")),
        *((name, 2, False) for name in ("cwt", "feder", "fedrewind", "rwt")),
        *((name, 1, False) for name in ("cwc", "cwt-serial", "fedavg", "standalone")),
    ],
)
def test_a_run_of_one_round_that_hands_no_model_on_is_told(strategy, rounds, told):
    settings = judged(f"strategy='{strategy}' num-server-rounds={rounds}")
    found = notices(settings, strategy_of(settings), simulated=True)
    assert any("No model is handed on" in notice for notice in found) == told


def command(*arguments):
    line = [sys.executable, "-X", "importtime", "-m", "cli", "check", *arguments]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_command_refuses_a_key_without_torch():
    good = command("--run-config", "strategy='cwc' model='mlp'", "--hospitals", "2")
    assert (good.returncode, good.stdout[:25]) == (0, "The settings can be used:")
    bad = command("--run-config", "cwc.strenght=1")
    assert bad.returncode == 2
    assert bad.stderr.endswith("did you mean 'cwc.strength'?\n")
    assert not re.search(r"\| +(torch|matplotlib)$", bad.stderr, re.MULTILINE)


def test_the_settings_that_pages_name_can_be_used(monkeypatch):
    """Those of every run and of every check, but for their data."""
    monkeypatch.setattr(module, "_is_there", lambda kind, path: True)
    pages = "".join((ROOT / page).read_text("utf-8") for page in ("README.md", "docs/settings.md"))
    texts = re.findall(r"(?:flwr run|fedhandoff (?:check|run)).* --run-config \"([^\"]*)\"", pages)
    assert len(texts) > 5
    for text in texts:
        judged(text)
