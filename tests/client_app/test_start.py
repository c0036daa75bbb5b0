"""What a hospital's people have written: refused at its start, and told to nobody else."""

import os
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from flwr.app import Message, RecordDict

from client_app.app import app
from client_app.authority.identity import Identity, secret_of
from client_app.authority.ledger import append, path_of
from client_app.authority.members import member_line
from client_app.authority.node_config import NodeConfig, OwnError
from client_app.authority.policy import DEFAULTS
from client_app.authority.start import check_own, find_policy
from client_app.hospital import open_hospital
from client_app.store import Store
from deploy.errors import DeployError
from deploy.hospital import Hospital, node_config
from strategies.protocol.code import code_hash
from strategies.protocol.order import Order
from strategies.protocol.records import to_record
from tests.fakes import deployed

SECRET = "Station-7"  # in the path of every file


@pytest.fixture
def place(tmp_path):
    """A hospital with a policy, members and an identity of its own."""
    place = deployed(tmp_path / SECRET)
    folder, config = tmp_path / SECRET, place.node_config
    identity = Identity.load("graz", folder / "identity")
    (folder / "members").write_text("# ours\n" + member_line("graz", identity.member))
    config |= {name: str(folder / name) for name in ("identity", "members")}
    (folder / "policy.toml").write_text(DEFAULTS.read_text("utf-8"))
    store = Path(str(config["store-dir"])) / "graz"
    secret_of(Store(store))
    (store / "privacy.jsonl").write_text("")
    return place


def refusal(config):
    with pytest.raises(OwnError) as caught:
        check_own(config)
    return caught.value.explain()


def test_a_hospital_whose_files_can_be_used_starts_and_says_what_is_in_force(place, tmp_path):
    def digest(path):
        return sha256(Path(path).read_bytes()).hexdigest()

    config, defaults = place.node_config, f"defaults hold ({DEFAULTS}, SHA-256 {digest(DEFAULTS)})."
    policy, ledger, members = check_own(config)
    assert policy == f"Policy: {config['policy']}, SHA-256 {digest(config['policy'])}"
    assert ledger == "Ledger: none yet."
    assert digest(config["members"]) in members
    assert "the members of the first run" in check_own({**config, "members": "first-use"})[-1]
    store = str(tmp_path / "empty")
    own = {key: config[key] for key in ("site", "data-dir")} | {"store-dir": store}
    policy, _, members = check_own(own)
    assert defaults in policy
    assert "open runs only" in members


def dangling(path):
    path.unlink(missing_ok=True)
    path.symlink_to("/nowhere/at/all")


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def test_a_file_of_weights_that_would_fill_the_memory_is_refused(place, tmp_path):
    """torch unpacks a compressed file: one of 390 kB took 400 MB."""
    path = tmp_path / "weights.pth"
    torch.save({"weight": torch.zeros(2**25)}, path)
    own = place.node_config | {"pretrained": str(path)}
    check_own(own)
    with zipfile.ZipFile(path) as plain:
        contents = {name: plain.read(name) for name in plain.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in contents.items():
            packed.writestr(name, content)
    assert "'pretrained' is" in refusal(own)
    assert "unpacks to 134,2" in refusal(own)


@pytest.mark.parametrize(
    "name",
    [
        *("Policy.toml", "POLICY.TOML", "policy.toml.txt", "policy.tml", "policy.tom", "policy"),
        *(
            "policies.toml",
            "poliy.toml",
            "ploicy.toml",
            "policy.yaml",
            "policy.toml~",
            "policy.toml ",
        ),
        *(
            "policy (1).toml",
            "policy-new.toml",
            "p\u043elicy.toml",
            ".policy.toml.swp",
            "my_policy",
        ),
    ],
)
def test_what_looks_like_a_policy_and_is_none_is_refused(name, tmp_path):
    for other in ("ca.crt", "graz.key", "members", "approved", "running.json", "flwr", "store"):
        (tmp_path / other).mkdir()
    assert find_policy(tmp_path) is None
    (tmp_path / name).write_text("[runs]\nmax-rounds = 1\n")
    with pytest.raises(OwnError) as caught:
        find_policy(tmp_path)
    assert "rename it to policy.toml" in caught.value.explain()
    (tmp_path / "policy.toml").write_text("")
    assert find_policy(tmp_path) == tmp_path / "policy.toml"


@pytest.mark.parametrize(
    "damage", [dangling, lambda path: path.mkdir(), lambda path: os.mkfifo(path)]
)
def test_a_policy_that_is_no_file_is_found_and_refused(damage, tmp_path):
    damage(tmp_path / "policy.toml")
    with pytest.raises(DeployError, match="is not a file"):
        node_config(Hospital(tmp_path, "linz:9092", "graz", tmp_path))


def test_a_broken_ledger_and_a_forgotten_run_are_named_at_the_start(place, tmp_path):
    config = place.node_config
    path = path_of("graz", Path(config["store-dir"]))
    append(path, {"time": "2026-01-01", "verb": "train", "run": "1", "left": []})
    assert "valid lines: 1" in check_own(config)[1]
    (path.parent / "runs" / "1").mkdir(parents=True)
    (path.parent / "runs" / "1" / "visits").write_text("1\n")
    append(path, {"time": "2026-01-01", "verb": "train", "run": "1", "left": []})
    (path.parent / "runs" / "1" / "visits").unlink()
    assert "visits was deleted or cut" in refusal(config)
    path.write_bytes(path.read_bytes().replace(b"train", b"tried"))
    assert "Without a backup move" in refusal(config)
    for file in (path, path.with_suffix(".sqlite")):  # its head is left, so no answer can be noted
        file.unlink()
    assert "from a backup" in refusal(config)


def test_the_cure_of_a_deleted_head_is_named_once(place):
    path = path_of("graz", Path(place.node_config["store-dir"]))
    append(path, {"time": "2026-01-01", "verb": "train", "run": "1", "left": []})
    path.with_suffix(".head").unlink()
    assert refusal(place.node_config).count("Without a backup move") == 1


def test_a_dangling_list_of_members_is_no_first_use(place, tmp_path):
    dangling(tmp_path / SECRET / "store" / "graz" / "members")
    assert "cannot be read" in refusal({**place.node_config, "members": "first-use"})


def as_folder(path):
    path.unlink()
    path.mkdir()


def written(text):
    return lambda path: path.write_text(text)


def appended(text):
    return lambda path: path.write_text(path.read_text() + text)


DAMAGE = {
    "missing": lambda path: path.unlink(),
    "folder": as_folder,
    "dangling": dangling,
    "pipe": pipe,
    "utf-16": lambda path: path.write_bytes(path.read_text().encode("utf-16")),
    "latin-1": lambda path: path.write_bytes(b"# M\xfcller\n"),
    "empty": lambda path: path.write_bytes(b""),
    "broken": appended("\n[runs\n"),
}
# What is said of a file of each kind with each damage, beside its path.
CASES = [
    *(
        (file, DAMAGE[kind], "")
        for file in ("policy.toml", "members")
        for kind in DAMAGE
        if kind != "empty"  # a policy with the defaults
    ),
    ("policy.toml", appended("\n[run]\nmax-rounds = 9\n"), "'run.max-rounds'; did you mean"),
    ("policy.toml", written("[runs]\n\nmax-round = 9"), "line 3: there is no rule"),
    ("policy.toml", written("[runs]\n\nmax-round = 9"), "did you mean 'runs.max-rounds'?"),
    ("policy.toml", written("[runs]\nmax-rounds = 'many'"), "line 2: "),
    ("policy.toml", written("# M\n[models]\nmax-membership = 5"), "line 3: "),
    ("policy.toml", written("max-rounds = 9"), "line 1: there is no rule 'max-rounds'"),
    ("policy.toml", appended("\n[run]\n"), "there is no rule 'run'"),
    (
        "policy.toml",
        written("[runs]\nmax-rounds = -1"),
        "line 2: The setting 'runs.max-rounds' is",
    ),
    ("policy.toml", written("[release]\nmin-quantile = 10"), "it must be 0 to 1"),
    (
        "policy.toml",
        written("[privacy]\nmax-epsilon = nan"),
        "it must be a number, and finite",
    ),
    ("policy.toml", written("[figures]\nwithheld = ['aurok']"), "did you mean 'auroc'?"),
    *(
        ("store/graz/figures-secret", DAMAGE[kind], "")
        for kind in ("folder", "latin-1", "empty", "dangling")
    ),
    *(
        ("store/graz/privacy.jsonl", DAMAGE[kind], "is damaged")
        for kind in ("folder", "latin-1", "dangling")
    ),
    ("store/graz/privacy.jsonl", written('{"spent": 1}'), "is damaged"),
    ("members", written(""), "has no line with this hospital's key. It must have: graz = "),
    ("members", written("graz = 7"), "line 1: "),
    ("members", appended("linz = 'AAAA'"), "line 3: 'linz' is not a name, or has no usable key"),
    ("members", appended("graz"), 'A line is name = "key"'),
    ("identity", as_folder, ""),
    ("identity", lambda path: path.write_bytes(b"short"), "has 5 bytes"),
    *(
        (file, lambda path, mode=mode: path.chmod(mode), "Others can read or write")
        for file in ("identity", "store/graz/figures-secret")
        for mode in (0o644, 0o606, 0o620)
    ),
    ("identity", lambda path: path.write_bytes(os.urandom(64)), "restore its backup first"),
]


@pytest.mark.parametrize(("file", "damage", "said"), CASES)
def test_a_file_that_cannot_be_used_is_named_at_the_start(place, tmp_path, file, damage, said):
    path = tmp_path / SECRET / file
    damage(path)
    why = refusal(place.node_config)
    assert said in why
    assert SECRET in why
    assert len(why.splitlines()) == 1


@pytest.mark.parametrize(("file", "damage", "said"), CASES)
def test_nothing_of_such_a_file_ever_leaves(place, tmp_path, file, damage, said, caplog):
    """Also if it is damaged after the start."""
    damage(tmp_path / SECRET / file)
    order = Order(0, 0, "graz", [], "plain", "1", code=code_hash())
    message = Message(RecordDict({"order": to_record(order)}), 1, "query.enrol")
    message.metadata.__dict__["_message_id"] = "m1"
    answer = app(message, place)
    words = str(answer.error.reason) if answer.has_error() else str(answer.content)
    assert SECRET not in words
    assert "line" not in words
    if file == "policy.toml":
        assert words == "The hospital's policy cannot be used; its own log says why."
        assert SECRET in caplog.text


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"modle": "resnet18"}, "no key 'modle'; did you mean 'model'?"),
        ({"Model": "resnet18"}, "no key 'Model'; did you mean 'model'?"),
        ({"train.learning_rate": 0.1}, "did you mean 'train.learning-rate'?"),
        ({"strategy": "cwt"}, "no key 'strategy'; it may be site, "),
        ({"num-partitions": 2}, "'num-partitions' is for simulations"),
        ({"model": 18}, "'model' is 18; it must be a text."),
        ({"mah.auxiliary": 18}, "'mah.auxiliary' is 18; it must be a text."),
        (
            {"keep": 1, "stie": "graz", "resident": 1},
            "'keep' is 1; it must be a text. The setting 'resident' is 1; it must be true or "
            "false. There is no key 'stie'; did you mean 'site'?",
        ),
        ({"resident": "yes"}, "'resident' is 'yes'; it must be true or false"),
        ({"resident": 1}, "it must be true or false"),
        ({"train.batch-size": 8.5}, "it must be a whole number"),
        ({"train.batch-size": True}, "it must be a whole number"),
        ({"train.batch-size": 0}, "'train.batch-size' is 0; it must be"),
        ({"train.learning-rate": "fast"}, "it must be a number"),
        ({"train.learning-rate": -1.0}, "'train.learning-rate' is -1.0; it must be"),
        ({"policy": ""}, "'policy' is ''; it must be a text that is not blank"),
        ({"members": ""}, "'members' is ''"),
        ({"store-dir": ""}, "'store-dir' is ''"),
        ({"keep": "all"}, "'keep' is 'all'; it must be one of final, visits, none"),
        ({"model": "resnet81"}, "There is no model 'resnet81'"),
        ({"ser.oracle": "/Station-7/maps.npz"}, "'ser.oracle' is '/Station-7/maps.npz', which is"),
    ],
)
def test_a_key_that_nobody_reads_and_a_value_of_the_wrong_kind_are_refused(place, config, said):
    assert said in refusal({**place.node_config, **config})


@pytest.mark.parametrize("key", ["partition-id", "num-partitions"])
def test_no_supernode_is_started_as_a_simulation(place, key, monkeypatch):
    monkeypatch.setattr("client_app.authority.node_config._simulates", False)
    assert f"'{key}' is for simulations" in refusal({**place.node_config, key: 1})


def test_a_simulated_hospital_has_what_flower_s_engine_sets():
    assert NodeConfig.read({"partition-id": 0, "num-partitions": 2}).num_partitions == 2
    with pytest.raises(OwnError):
        NodeConfig.read({"partition-id": 0, "num-partitions": 2, "stie": "graz"})


@pytest.mark.parametrize("key", ["pretrained", "gan.lpips-weights", "gan.inception-weights"])
def test_a_setting_of_the_hospital_s_own_is_not_told_with_its_value(place, key):
    place.node_config[key] = f"{SECRET}/x.npz"  # must be absolute
    with pytest.raises(OwnError) as caught:
        open_hospital(place)
    assert SECRET in caught.value.explain()
    assert SECRET not in str(caught.value)
