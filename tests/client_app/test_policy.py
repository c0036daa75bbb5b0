"""Tests of client_app/authority/policy.py: what a hospital allows, whatever a run asks for."""

import re
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

import client_app
from cli import main
from client_app.authority.identity import Identity
from client_app.authority.members import add_member
from client_app.authority.node_config import OwnError
from client_app.authority.policy import DEFAULTS, Policy, PolicyError
from deploy.own_file import write_own
from learning.learners import LEARNERS
from learning.learners.agem import TaskMemory
from learning.learners.plain import Learner
from strategies.protocol.declared import keys_of
from strategies.protocol.learners import BY_TASK, WITH_MEMORY, WITH_RESERVOIR
from strategies.protocol.settings import Settings, SettingsError, defaults
from strategies.registry import STRATEGIES
from strategies.rwt import RWT


def policy_of(tmp_path, text: str) -> Policy:
    path = tmp_path / "policy.toml"
    path.write_text(text, "utf-8")
    return Policy.read(path)


def test_the_default_settings_pass_the_default_policy():
    Policy.read().check(Settings.parse(defaults()))


def test_a_table_of_settings_that_the_run_does_not_read_decides_nothing():
    """No method or learner of `standalone` reads these negative numbers."""
    read = {field.name for field in fields(Settings)}
    unread = {
        key: -1
        for key, value in defaults().items()
        if key.partition(".")[0] not in {*read, "async"} and type(value) in (int, float)
        if "." in key
    }
    assert {"reservoir.size", "sums.epsilon", "lwf.warm-up"} <= unread.keys()
    Policy.read().check(Settings.parse(defaults() | {"strategy": "standalone"} | unread))


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        ("release.min-quantile", {"release.quantile": 0.0}),
        ("release.max-discarded-share", {"release.max-discarded": 0.999}),
        ("release.min-class-training-images", {"release.min-class-images": 1}),
        ("release.min-averaged", {"gan.sampler": "k-salsa", "gan.k": 4}),
        ("release.min-averaged", {"gan.sampler": "k-salsa-plan", "gan.k": 4}),
        ("release.min-averaged", {"gan.sampler": "lci", "gan.clusters": "20"}),
        ("release.min-privacy-weight", {"gan.privacy-weight": 0}),
        ("release.max-images", {"feder.buffer-size": 100_000}),
        ("release.max-gan-iterations", {"gan.iterations": 25_001}),
        ("release.max-gan-iterations", {"gan.preset": "xray-256"}),
        # 25 GANs of 2,100 iterations
        ("release.max-gan-iterations", {"gan.preset": "small", "release.shadow-generators": 24}),
        ("images.max-size", {"image-size": 3000}),
        ("images.min-batch", {"train.batch-size": 7}),
        ("runs.max-rounds", {"num-server-rounds": 100_000}),
        ("runs.max-epochs", {"train.epochs": 1000}),
        ("runs.max-hours", {"hop-timeout": 1e9}),
        ("runs.max-hours", {"prepare-timeout": 1e9}),
        ("runs.sealed-only", {"sealed": False}),
        ("models.allow-optimizer", {"train.optimizer-state": "travels"}),
    ],
)
def test_a_run_that_is_laxer_than_the_default_policy_is_refused(rule, settings):
    with pytest.raises(PolicyError) as refusal:
        Policy.read().check(Settings.parse({**defaults(), **settings}))
    assert refusal.value.rule == rule
    assert rule not in str(refusal.value)


def test_every_rule_is_applied():
    """A rule that no code reads would look like protection."""
    files = Path(client_app.__path__[0]).rglob("*.py")
    code = "\n".join(file.read_text("utf-8") for file in files)
    for table, rules in get_type_hints(Policy).items():
        for rule in get_type_hints(rules):
            name = rule.replace("_", "-")
            assert rule == "table" or re.search(rf'\.{rule}\b|"{name}"', code), f"{table}.{name}"


@pytest.mark.parametrize("method", ["stylegan2-ada", "dp-mean-embedding"])
@pytest.mark.parametrize(("size", "fits"), [(0, True), (1, False), (3, False), (4, True)])
def test_a_run_may_not_ask_for_a_buffer_too_small_for_an_attack(size, fits, method):
    """A server could ask for one after another, and none would be tested."""
    asked = {**defaults(), "feder.buffer-size": size, "gan.method": method}
    if fits:
        Policy.read().check(Settings.parse(asked))
        return
    with pytest.raises(PolicyError) as refusal:
        Policy.read().check(Settings.parse(asked))
    assert refusal.value.explain() == (
        "Refused by the policy: release.max-membership-leak allows a feder.buffer-size of 0, or of "
        f"4 or more (an attack needs 4); the value is {size}."
    )


def test_where_nothing_is_attacked_a_buffer_may_be_small(tmp_path):
    policy = policy_of(tmp_path, "release.max-membership-leak = 1")
    small = {**defaults(), "feder.buffer-size": 3}
    policy.check(Settings.parse({**small, "release.max-membership": 1.0}))
    with pytest.raises(PolicyError):
        policy.check(Settings.parse(small))


@pytest.mark.parametrize(
    "settings",
    [{"gan.sampler": "k-salsa"}, {"gan.sampler": "plan", "gan.k": 2}, {"gan.sampler": "linear"}],
)
def test_averages_of_five_images_or_of_none_pass_the_default_policy(settings):
    Policy.read().check(Settings.parse({**defaults(), **settings}))


@pytest.mark.parametrize(
    ("rule", "text", "settings"),
    [
        ("runs.strategies", 'runs.strategies = ["cwc"]', {}),
        ("release.min-privacy-weight", "release.min-privacy-weight = 2", {}),
        ("release.buffers", "release.buffers = false", {}),
        (
            "release.allow-without-privacy",
            "release.min-privacy-weight = 0",
            {"gan.privacy-weight": 0},
        ),
        (  # a class of four images has an average of four
            "release.min-averaged",
            "release.min-class-training-images = 4",
            {"gan.sampler": "k-salsa", "release.min-class-images": 4},
        ),
        ("code.approved", f'code.approved = ["{"0" * 64}"]', {}),
        ("runs.max-epochs", "runs.max-epochs = 2", {}),
        (
            "runs.max-epochs",
            "runs.max-epochs = 5",
            {"strategy": "rwt", "learner": "lwf", "train.epochs": 5},
        ),
        (
            "runs.max-epochs",
            "runs.max-epochs = 11",
            {
                "strategy": "rwt",
                "learner": "twf",
                "train.epochs": 2,
                "twf.teacher": "public:/x.npz",
            },
        ),
        (
            "models.max-membership",
            "models.max-membership = 0.5",
            {"strategy": "cwt-serial", "evaluate.epochs": True},
        ),
        ("privacy.require", "privacy.require = ['training']", {"strategy": "rwt"}),
        (
            "privacy.require",
            "privacy.require = ['training']\nsums.allow = true",
            {"strategy": "sums", "train.freeze": "body", "train.dp.noise-multiplier": 1.0},
        ),
        ("privacy.require", "privacy.require = ['buffers']", {}),
        (
            "privacy.require",
            "privacy.require = ['sums']",
            {"strategy": "fedspace", "model": "rotation-mlp"},
        ),
        ("privacy.require", "privacy.require = ['sums']", {"strategy": "rwt", "learner": "twf"}),
        (
            "privacy.require",
            "privacy.require = ['sums']",
            {"strategy": "fedrewind", "rewind.base": "fedspace"},
        ),
        (
            "runs.max-epochs",
            "runs.max-epochs = 5",
            {"strategy": "fil-ver", "model": "vee", "filver.pretrain-epochs": 6},
        ),
        (  # a draw has all four images
            "images.min-batch",
            "images.min-train-patients = 2",
            {"strategy": "rwt", "learner": "derpp", "reservoir.size": 4},
        ),
    ],
)
def test_a_hospital_s_own_rules_count(rule, text, settings, tmp_path):
    with pytest.raises(PolicyError) as refusal:
        policy_of(tmp_path, text).check(Settings.parse({**defaults(), **settings}))
    assert refusal.value.rule == rule


@pytest.mark.parametrize(
    "learner", [{"learner": "agem"}, {"learner": "fdr"}, {"learner": "ser", "ser.learner": "agem"}]
)
def test_a_reservoir_that_is_cut_by_task_has_enough_images_of_each(learner):
    """80 images are 40 of each of two tasks, and 20 of each of four."""
    asked = {**defaults(), **learner, "strategy": "rwt", "reservoir.size": 80}
    Policy.read().check(Settings.parse({**asked, "tasks": 2}))
    with pytest.raises(PolicyError) as refusal:
        Policy.read().check(Settings.parse({**asked, "tasks": 4}))
    assert refusal.value.rule == "images.min-train-patients"
    assert refusal.value.requested == 20


@pytest.mark.parametrize(
    ("named", "refused"),
    [(["fedrewind"], ["fedspace"]), (["fedspace"], ["fedrewind"]), (["fedrewind", "fedspace"], [])],
)
def test_the_base_of_fedrewind_has_to_be_named_beside_it(named, refused, tmp_path):
    """With `rewind.fraction` 0 the run is one of the base alone."""
    policy = policy_of(tmp_path, f"[runs]\nstrategies = {named}")
    chosen = {"strategy": "fedrewind", "rewind.base": "fedspace", "rewind.fraction": 0.0}
    chosen |= {"model": "rotation-mlp"}
    rulings = policy.judge(Settings.parse({**defaults(), **chosen}))
    rules = [each for each in rulings if each.rule == "runs.strategies" and not each.holds]
    assert [each.requested for each in rules] == refused


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [("true", "sealed runs"), ("false", "sealed runs and open ones")],
)
def test_a_ruling_says_whether_open_runs_are_allowed(rule, allowed, tmp_path):
    policy = policy_of(tmp_path, f"runs.sealed-only = {rule}")
    rulings = {each.rule: each for each in policy.judge(Settings.parse(defaults()))}
    assert rulings["runs.sealed-only"].allowed == allowed


def test_a_refusal_has_the_rule_and_the_limit_that_the_file_has(tmp_path):
    """It named max-images, and a limit of 0."""
    policy = policy_of(tmp_path, "release.buffers = false\nrelease.max-images = 1234567")
    with pytest.raises(PolicyError) as refusal:
        policy.check(Settings.parse(defaults()))
    assert refusal.value.explain() == (
        "Refused by the policy: release.buffers allows no buffer; the value is 'a buffer'."
    )
    ruling = policy.release.ruling("max-images", 1234568)
    assert (ruling.allowed, ruling.holds) == ("1234567 or less", False)


def test_a_hospital_may_allow_the_optimizer_s_state(tmp_path):
    settings = Settings.parse({**defaults(), "train.optimizer-state": "travels"})
    policy_of(tmp_path, "models.allow-optimizer = true").check(settings)


def test_a_hospital_that_releases_no_buffers_takes_part_where_there_are_none(tmp_path):
    settings = Settings.parse({**defaults(), "strategy": "cwc"})
    policy_of(tmp_path, "release.buffers = false").check(settings)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("release.quantil = 1", "release.quantil"),
        ("sealed-only = true", "there is no rule 'sealed-only'"),
        ("runs.max-rounds = 'many'", "runs.max-rounds"),
        ("runs.strategies = 'cwc'", "a list of texts"),
        ("runs.strategies = ['cwcc']", "line 1: The setting 'runs.strategies' is ['cwcc']"),
        ("runs.strategies = ['cwcc']", "did you mean 'cwc'?"),
        ("runs.strategies = ['']", "known names"),
        ("\n[figures]\nwithheld = ['accuracy-low']", "line 3: "),
        ("figures.withheld = ['accuracy-low']", "known names; did you mean 'accuracy"),
        ("figures.withheld = ['num-examples']", "known names"),
        ("images.classes = ['']", "names without blanks around them"),
        ("code.approved = ['0']", "hashes of 64 digits"),
        ("privacy.require = ['train']", "did you mean 'training'?"),
        ("release.max-membership-leak = 5", "is 5; it must be 0 to 1"),
        ("release.max-discarded = 1", "did you mean 'release.max-discarded-share'?"),
        ("release.max-membership = 1", "did you mean 'release.max-membership-leak'?"),
        ("release.untested = true", "did you mean 'release.allow-untested'?"),
        ("release.without-privacy = true", "did you mean 'release.allow-without-privacy'?"),
        ("release.min-class-images = 1", "did you mean 'release.min-class-training-images'?"),
        ("release.min-quantile = -1", "it must be 0 to 1"),
        ("release.min-quantile = nan", "a number, and finite"),
        ("privacy.max-epsilon = inf", "a number, and finite"),
        ("privacy.max-epsilon = 1e400", "a number, and finite"),
        ("privacy.max-epsilon = 101", "it must be 0 to 100"),
        ("privacy.max-epsilon = -1", "it must be 0 to 100"),
        ("privacy.max-delta = 0.1", "it must be 0 to 0.01"),
        ("runs.max-hours = 1e10", "it must be 0 to 1000000000"),
        (f"runs.max-rounds = {10**30}", "it must be 1 to 1000000000"),
        ("runs.max-rounds = 0x" + "f" * 5000, "it must be 1 to 1000000000"),
        ("a = " + "[" * 5000, "cannot be read"),
        ("figures.smallest-group = 0", "smallest-group"),
        ("'runs.max-rounds' = 1\n[runs]\nmax-rounds = 9", "there is no rule '\"runs.max-rounds\"'"),
        ("figures = {smallest-group = 0}", "policy.toml: The setting 'figures.smallest-group'"),
        ("[", "cannot be read"),
    ],
)
def test_a_policy_with_a_mistake_is_refused_with_its_path(text, reason, tmp_path):
    with pytest.raises(OwnError) as refusal:
        policy_of(tmp_path, text)
    assert reason in refusal.value.explain()
    assert str(tmp_path / "policy.toml") in refusal.value.explain()
    assert str(refusal.value) == "The hospital's policy cannot be used; its own log says why."


def test_no_rule_is_called_like_a_setting():
    assert not {*keys_of(Policy)} & defaults().keys()


def test_all_mistakes_of_a_policy_are_named_at_once(tmp_path):
    text = "[runs]\nmax-rounds = 0\nmax-epoch = 1\n\n[models]\nmax-megabytes = true"
    with pytest.raises(OwnError) as refusal:
        policy_of(tmp_path, text)
    assert refusal.value.explain().endswith(
        "line 2: The setting 'runs.max-rounds' is 0; it must be 1 or more. "
        "line 3: there is no rule 'runs.max-epoch'; did you mean 'runs.max-epochs'? "
        "line 6: The setting 'models.max-megabytes' is true; it must be a number, and finite."
    )


def test_the_rules_know_which_learners_send_more_than_a_model():
    sending = {name for name, each in LEARNERS.items() if each.memory is not Learner.memory}
    assert sending == WITH_MEMORY, "WITH_MEMORY names the learners with a `memory`"


def test_the_rules_know_which_learners_keep_a_reservoir():
    keeping = {name for name, each in LEARNERS.items() if "reservoir" in dict(each.tables)}
    # The rules judge `ser.learner` instead, which may be `rehearsal`.
    assert keeping - {"ser"} == WITH_RESERVOIR, "WITH_RESERVOIR names those with the table"


def test_the_rules_know_which_learners_cut_the_reservoir_by_task():
    cutting = {name for name, each in LEARNERS.items() if issubclass(each, TaskMemory)}
    assert cutting == BY_TASK, "BY_TASK (policy.py): those that keep images of each task"


def test_the_rules_hold_for_a_method_with_a_learner_of_its_own(monkeypatch):
    """Its reservoir is bounded like that of the setting `learner`."""
    monkeypatch.setitem(STRATEGIES, "own", type("Own", (RWT,), {"learner": "er"}))
    chosen = {**defaults(), "strategy": "own", "reservoir.batch-size": 2}
    with pytest.raises(PolicyError) as refusal:
        Policy.read().check(Settings.parse(chosen))
    assert refusal.value.rule == "images.min-batch"


@pytest.mark.parametrize("size", ["many", b"512", 5e2])
def test_a_buffer_size_that_is_no_number_is_refused(size):
    with pytest.raises(SettingsError, match=r"feder\.buffer-size"):
        Policy.read().check(Settings.parse({**defaults(), "feder.buffer-size": size}))


def test_a_policy_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(OwnError):
        Policy.read(tmp_path / "policy.toml")


def test_every_rule_is_explained_in_the_file_of_defaults():
    rules = [line for line in DEFAULTS.read_text("utf-8").splitlines() if " = " in line]
    assert rules
    assert all("#" in line for line in rules)


def test_the_file_of_defaults_says_where_the_members_are(tmp_path, monkeypatch, capsys):
    """Its command lists who takes part."""
    key = str(Identity.load("linz", tmp_path / "key").member)
    add_member(tmp_path / "graz" / "members", "linz", key)
    (line,) = [line for line in DEFAULTS.read_text("utf-8").splitlines() if line[:3] == "#  "]
    assert line.split()[1:] == ["fedhandoff", "members", "--hospital", "NAME"]
    write_own(tmp_path, "hospital.toml", {"name": "graz", "store": "."})
    with pytest.raises(SystemExit):
        main(["members", "--hospital", str(tmp_path)])
    assert capsys.readouterr().out.startswith("linz = ")


def command(monkeypatch, *arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main(["policy", *map(str, arguments)])
    return int(end.value.code or 0)


def test_the_command_writes_the_defaults_once(tmp_path, monkeypatch, capsys):
    path = tmp_path / "graz" / "policy.toml"
    assert command(monkeypatch, path) == 0
    assert path.read_bytes() == DEFAULTS.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("runs.max-epochs = 2", "utf-8")
    assert command(monkeypatch, path) == 0
    assert path.read_text("utf-8") == "runs.max-epochs = 2"


def test_the_command_says_that_a_link_leads_nowhere(tmp_path, monkeypatch, capsys):
    (link := tmp_path / "policy.toml").symlink_to(tmp_path / "unmounted")
    assert command(monkeypatch, link) == 2
    assert f"{link} cannot be read: No such file or directory" in capsys.readouterr().err


def test_the_command_says_what_is_wrong_with_the_file(tmp_path, monkeypatch, capsys):
    """Whoever calls it is at the hospital: there is no other log to look into."""
    path = tmp_path / "policy.toml"
    path.write_text("\n[runs]\nmax-epochs = -2", "utf-8")
    assert command(monkeypatch, path) == 2
    said = capsys.readouterr().err
    assert f"{path}, line 3: The setting 'runs.max-epochs' is -2; it must be 1 or more." in said


def test_the_command_explains_a_run(tmp_path, monkeypatch, capsys):
    path = tmp_path / "policy.toml"
    path.write_text("runs.max-epochs = 2", "utf-8")
    assert command(monkeypatch, path, "--run-config", "train.epochs=2") == 0
    assert "allows this run" in capsys.readouterr().out
    assert command(monkeypatch, path, "--run-config", "train.epochs=3") == 1
    shown = capsys.readouterr().out
    refused = [line.split() for line in shown.splitlines() if line.endswith("REFUSED")]
    assert refused == [["runs.max-epochs", "2", "or", "less", "3", "REFUSED"]]
    assert "refuses this run (1 of" in shown


@pytest.mark.parametrize(("named", "allowed"), [(["rwt"], False), (["rwt", "rehearsal"], True)])
def test_a_learner_has_to_be_named_beside_the_methods(named, allowed, tmp_path):
    policy = policy_of(tmp_path, f"[runs]\nstrategies = {named}")
    settings = Settings.parse({**defaults(), "strategy": "rwt", "learner": "rehearsal"})
    refused = [each.requested for each in policy.judge(settings) if not each.holds]
    assert refused == ([] if allowed else ["rehearsal"])


@pytest.mark.parametrize(
    ("text", "changes", "said"),
    [
        ("", {}, "Embeddings (sampled) stay here: embeddings.kinds is empty."),
        ("[embeddings]\nkinds = ['ebr']", {}, "stay here: embeddings.kinds is ebr."),
        ("[embeddings]\nkinds = ['sampled']", {}, "leave if their audit stays within"),
        ("", {"filver.server-steps": 0}, ""),
        ("", {"strategy": "fedavg"}, ""),
    ],
)
def test_the_explanation_says_what_becomes_of_embeddings(
    text, changes, said, tmp_path, capsys, monkeypatch
):
    (tmp_path / "policy.toml").write_text("[runs]\nsealed-only = false\n" + text)
    chosen = {"strategy": "fil-ver", "model": "vee", "sealed": False, **changes}
    words = " ".join(
        f"{key}={str(v).lower() if v is False else repr(v)}" for key, v in chosen.items()
    )
    with pytest.raises(SystemExit) as ended:
        main(["policy", str(tmp_path / "policy.toml"), "--run-config", words])
    assert not ended.value.code
    last = capsys.readouterr().out.splitlines()[-1]
    assert said in last if said else last == "The policy allows this run."


@pytest.mark.parametrize(
    ("weights", "said"), [("[]", False), ("['/net']", False), ("['imagenet']", True)]
)
def test_the_explanation_names_weights_that_only_their_hash_can_allow(
    weights, said, tmp_path, capsys, monkeypatch
):
    path = tmp_path / "policy.toml"
    path.write_text(f"[models]\nweights = {weights}", "utf-8")
    command(monkeypatch, path, "--run-config", "strategy='rwt' pretrained='/net'")
    shown = capsys.readouterr().out
    told = "The weights '/net' are refused unless models.weights has their SHA-256; it has imagenet"
    assert (told in shown) == said
    assert "The file of 'pretrained' is refused unless the hospital's node-config" in shown


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({}, "no guarantee"),
        ({"train.dp.noise-multiplier": 1.0}, "the account adds up"),
        ({"gan.method": "dp-mean-embedding", "gan.epsilon": 0.5}, "0.5"),
        ({"strategy": "rwt", "gan.method": "dp-mean-embedding"}, "no guarantee"),
    ],
)
def test_a_run_without_a_guarantee_does_not_read_as_one_with_an_epsilon_of_0(settings, asked):
    rulings = Policy.read().judge(Settings.parse({**defaults(), **settings}))
    (ruling,) = (each for each in rulings if each.rule == "privacy.max-epsilon")
    assert asked in str(ruling.requested)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"gan.epsilon": 1.1}, "privacy.max-epsilon"),
        ({"gan.delta": 1e-4}, "privacy.max-delta"),
        ({"train.dp.noise-multiplier": 1.0, "train.dp.delta": 1e-4}, "privacy.max-delta"),
    ],
)
def test_a_guarantee_that_is_too_weak_is_refused(settings, rule):
    asked = {**defaults(), "gan.method": "dp-mean-embedding"}
    # What is about StyleGAN's privacy loss says nothing of it.
    Policy.read().check(Settings.parse({**asked, "gan.privacy-weight": 0.0}))
    with pytest.raises(PolicyError) as refusal:
        Policy.read().check(Settings.parse({**asked, **settings}))
    assert refusal.value.rule == rule
