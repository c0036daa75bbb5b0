"""A server that names hospitals and keys as it likes, to hospitals that trusted it at first use."""

import base64
import json
import shlex

import pytest

from client_app.authority.identity import Identity, Member
from client_app.authority.members import add_member, read_members
from client_app.hospital import open_hospital
from strategies.protocol.order import hash_members
from strategies.protocol.settings import SettingsError
from tests.fakes import context, run_config
from tests.test_sealed_federation import NAMES, failures, federate

SHORT = {"num_server_rounds": 2, "train__epochs": 1}
P = 2**255 - 19


def pins(tmp_path, hospital="hospital-0"):
    members = read_members(tmp_path / hospital / "members")
    return {name: str(member) for name, member in members.items()}


def announcing(change, to=NAMES):
    """The server changes the keys that its orders to some hospitals announce."""

    hashes: dict[str, str] = {}

    def changed(message):
        order = message.content.get("order", {})
        if order.get("hospital") in to:
            keys = dict(entry.split(" ") for entry in order["members"])
            named = order["members_hash"]
            if keys:
                order["members"] = [f"{name} {key}" for name, key in change(keys).items()]
                hashes[named] = hash_members(order["members"])
            order["members_hash"] = hashes.get(named, named)  # it holds the list that came before
        return message

    return changed


def sealed_for(grid):
    """Everybody for whom anything was sealed in a run."""
    names = set()
    for message in grid.sent:
        for record in message.content.array_records.values():
            content = record["sealed"].numpy().tobytes()
            names |= json.loads(content[4 : 4 + int.from_bytes(content[:4], "big")])["keys"].keys()
    return names


@pytest.mark.slow
def test_a_new_name_in_a_later_run_is_not_trusted(tmp_path, caplog, call):
    federate(tmp_path, **SHORT)
    trusted = pins(tmp_path)
    assert trusted.keys() == {*NAMES}
    mallory = str(Identity.load("mallory", tmp_path / "mallory").member)
    more = announcing(lambda keys: keys | {"mallory": mallory})
    _, ledger, grid = federate(tmp_path, change=more, **SHORT)
    assert {event.outcome for event in ledger.events} == {"ok"}
    assert pins(tmp_path) == trusted
    assert sealed_for(grid) == {*NAMES}
    warning = next(line for line in caplog.messages if "hospital-0/members" in line)
    assert call(*shlex.split(warning.split("right: ")[1])[1:])[0] == 0
    assert pins(tmp_path).keys() == {*NAMES, "mallory"}


@pytest.mark.slow
def test_another_key_of_a_member_is_not_trusted_and_the_run_goes_on(tmp_path):
    federate(tmp_path, **SHORT)
    trusted = pins(tmp_path)
    mallory = str(Identity.load("mallory", tmp_path / "mallory").member)
    other = announcing(lambda keys: keys | {"hospital-1": mallory}, ("hospital-0", "hospital-2"))
    _, ledger, _ = federate(tmp_path, change=other, **SHORT)
    assert {event.outcome for event in ledger.events} == {"ok"}
    assert pins(tmp_path) == trusted


@pytest.mark.slow
def test_a_name_writes_no_line_of_its_own(tmp_path):
    federate(tmp_path, **SHORT)
    before = (tmp_path / "hospital-0" / "members").read_bytes()
    mallory = str(Identity.load("mallory", tmp_path / "mallory").member)
    more = announcing(lambda keys: keys | {"#\nhospital-1": mallory}, ["hospital-0"])
    _, ledger, _ = federate(tmp_path, change=more, **SHORT)
    assert (tmp_path / "hospital-0" / "members").read_bytes() == before
    ((hospital, outcome, reason),) = failures(ledger, "query.prepare")
    assert (hospital, outcome) == ("hospital-0", "parcel")
    assert reason.startswith("A hospital cannot be called '#\\nhospital-1'")


def of_small_order():
    """All eight points of Ed25519 whose order divides 8: multiples of L times any point."""
    d, half = -121665 * pow(121666, -1, P) % P, pow(2, (P - 1) // 4, P)

    def add(one, other):
        (a, b), (c, e) = one, other
        k = d * a * b * c * e
        x, y = (a * e + b * c) * pow(1 + k, -1, P), (b * e + a * c) * pow(1 - k, -1, P)
        return x % P, y % P

    def times(number, point):
        total = (0, 1)
        for bit in f"{number:b}":
            total = add(total, total)
            total = add(total, point) if bit == "1" else total
        return total

    for y in range(2, 100):
        square = (y * y - 1) * pow(d * y * y + 1, -1, P) % P
        x = pow(square, (P + 3) // 8, P)
        x = x if x * x % P == square else x * half % P
        point = times(2**252 + 27742317777372353535851937790883648493, (x, y))
        if x * x % P == square and add(*[times(2, point)] * 2) != (0, 1):
            return [times(k, point) for k in range(8)]
    raise AssertionError


def test_keys_of_low_order_are_no_keys(tmp_path):
    good = base64.b64decode(str(Identity.load("graz", tmp_path / "graz").member))
    points = of_small_order()
    assert len({*points}) == 8
    encoded = [y | (x & 1) << 255 for x, y in points]
    encoded += [P, P + 1, P | 1 << 255, 2]  # 0 and 1 written in another way; no point at all
    edwards = [number.to_bytes(32, "little") + good[32:] for number in encoded]
    montgomery = [good[:32] + u.to_bytes(32, "little") for u in (0, 1, P - 1, P, P + 1)]
    for raw in [*edwards, *montgomery, good[:-1], good + b"x", b""]:
        with pytest.raises(ValueError, match=r"."):
            Member.parse(base64.b64encode(raw).decode())
    for number in range(100):
        text = str(Identity.load("graz", tmp_path / str(number)).member)
        assert str(Member.parse(text)) == text


@pytest.mark.slow
def test_a_key_of_low_order_shuts_its_hospital_out_and_no_other(tmp_path):
    low = base64.b64encode(bytes(64)).decode()
    bad = announcing(lambda keys: keys and keys | {"hospital-1": low}, ("hospital-0", "hospital-2"))
    _, ledger, _ = federate(tmp_path, "cwt", change=bad, num_server_rounds=4, train__epochs=1)
    assert pins(tmp_path).keys() == {"hospital-0", "hospital-2"}
    assert {event.outcome for event in ledger.events} == {"ok", "parcel"}
    reasons = " ".join(reason for _, _, reason in failures(ledger))
    assert "sealed by 'hospital-1', who is not a member here" in reasons
    assert any(len({e.hospital, e.lineage}) == 2 and e.outcome == "ok" for e in ledger.of("train"))


@pytest.mark.slow
def test_a_hospital_that_comes_later_needs_the_word_of_the_others(tmp_path):
    federate(tmp_path, members=["first-use", "first-use", ""], **SHORT)
    assert pins(tmp_path).keys() == {"hospital-0", "hospital-1"}
    _, ledger, _ = federate(tmp_path, "cwt", num_server_rounds=3, train__epochs=1)
    reasons = {reason.partition(":")[0] for _, _, reason in failures(ledger)}
    assert {event.outcome for event in ledger.events} == {"ok", "parcel"}
    assert reasons <= {
        "A record was sealed by 'hospital-2', who is not a member here.",
        "A record of 'hospital-0' is not sealed for 'hospital-2'",
        "A record of 'hospital-1' is not sealed for 'hospital-2'",
    }
    key = pins(tmp_path, "hospital-2")["hospital-2"]
    for hospital in ("hospital-0", "hospital-1"):
        add_member(tmp_path / hospital / "members", "hospital-2", key)
    _, ledger, _ = federate(tmp_path, "cwt", num_server_rounds=3, train__epochs=1)
    assert {event.outcome for event in ledger.events} == {"ok"}


def test_a_hospital_names_itself_in_a_deployment(tmp_path):
    """With another name it would have another store, and trust whom it is told to once more."""
    own = {"members": "first-use", "dataset": "digits", "store-dir": str(tmp_path)}
    place = context(0, 1, run_config(sealed=True))
    place.node_config = {**own}
    with pytest.raises(SettingsError, match="does not say its name: set 'site' in its node-config"):
        open_hospital(place, "renamed")
    place.node_config = {**own, "site": "graz"}
    assert open_hospital(place, "renamed").name == "graz"
