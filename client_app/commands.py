"""A hospital's commands: its images, policy, members and ledger. The package cli names them."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from client_app.authority import ledger_view
from client_app.authority.identity import Identity
from client_app.authority.ledger import path_of, read
from client_app.authority.ledger_index import BrokenLedger
from client_app.authority.members import add_member, member_line, read_members, remove_member
from client_app.authority.policy import Policy, explain, write_policy
from client_app.store import own_draft
from strategies.protocol.run_config import changed_settings
from strategies.protocol.settings import SettingsError


def identity(site: str, store_dir: Path, members: Path | None) -> None:
    """Print the hospital's line for the files of members; make its keys if it has none.

    Args:
        site: The hospital's name.
        store_dir: The folder of its store.
        members: Its own file of members, which gets the line, too.
    """
    member = Identity.load(site, store_dir / site / "identity").member
    if members:
        add_member(members, site, str(member))
    print(member_line(site, member), end="")


def members(path: Path, change: Sequence[str]) -> None:
    """Change a hospital's file of members, if there is a change, and print its lines.

    Raises:
        SettingsError: The change, or the file, cannot be read.
    """
    match change:
        case [] | ["list"]:
            pass
        case ["add", name, key] | ["add", name, "=", key]:  # the line that `join` prints
            add_member(path, name, key)
        case ["remove", name]:
            remove_member(path, name)
        case _:
            raise SettingsError("Say list, add NAME KEY, or remove NAME.")
    print("".join(member_line(*each) for each in read_members(path).items()), end="")


def ledger(site: str, store_dir: Path, html: Path | None) -> bool:
    """Check a hospital's ledger, and print it; returns whether the chain is intact.

    Raises:
        SettingsError: The ledger cannot be read.
    """
    path = path_of(site, store_dir)
    lines, broken = [], ""
    try:
        for line in read(path):
            lines.append(line)
    except BrokenLedger as error:
        broken = str(error)
    except OSError as error:
        raise SettingsError(
            f"There is no ledger to read: {error}. Name a hospital with --hospital; a simulation "
            "has no ledger."
        ) from error
    newest = lines[-1].hash if lines else "-"
    verdict = f"{broken or 'The chain is intact.'} Valid lines: {len(lines)}. Hash of the last: "
    verdict += f"{newest}. Keep both on another machine: they show later if lines are missing."
    print(ledger_view.text(lines, verdict))
    if html:
        html.write_text(ledger_view.page(site, lines, verdict, not broken), encoding="utf-8")
    return not broken


def policy(path: Path, run_config: str | None) -> bool:
    """Write a policy if the file is new, and print the rulings on a run, if one is given.

    Returns:
        Whether the policy allows the run.

    Raises:
        SettingsError: The policy or the settings cannot be read.
    """
    if not path.exists():
        write_policy(path)
        print(f"{path} has the defaults now: read it, and change rules as needed.")
    rules = Policy.read(path)
    if run_config is None:
        return True
    settings = changed_settings(run_config)
    rulings = list(rules.judge(settings))
    print(explain(rulings))
    if said := rules.embeddings_sentence(settings):
        print(said)
    return all(ruling.holds for ruling in rulings)


def preflight(
    site: str,
    store_dir: Path,
    data_dir: Path,
    dataset: str | None,
    run_config: str | None,
    policy: Path | None,
) -> bool:
    """Check a hospital's images; print the result and write it into the hospital's store.

    Args:
        site: The hospital's name.
        store_dir: The folder of its store.
        data_dir: Its folder of images, or its manifest.
        dataset: "folder" or "manifest"; None = a manifest if there is one.
        run_config: Settings of the run; None = the defaults.
        policy: The policy that judges them.

    Returns:
        Whether the hospital can take part.

    Raises:
        SettingsError: Settings cannot be used.
        PolicyError: The policy cannot be used, or the store would be too large.
    """
    import torch  # takes seconds

    from client_app.datasets.own import own_data
    from client_app.datasets.preflight.card import examine
    from client_app.datasets.preflight.page import page, text

    path = str(data_dir.absolute())
    source = f"{dataset}:{path}" if dataset else own_data(path)
    settings = replace(changed_settings(run_config), dataset=source)
    torch.set_num_threads(settings.cpu_threads)

    def show(what: str, done: int, total: int) -> None:
        print(f"{what} images: {done} of {total}", end="\r", file=sys.stderr, flush=True)

    terminal = sys.stderr.isatty()  # elsewhere lines are logged
    card, survey = examine(site, settings, store_dir, show if terminal else None, policy)
    if terminal:
        print(" " * 60, end="\r", file=sys.stderr)
    print(text(card))
    folder = store_dir / site / "preflight"
    content = json.dumps({"verdict": card.verdict, **asdict(card)}, indent=1)
    written = {"card.json": content, "card.html": page(card, survey)}
    for file, content in written.items():
        with own_draft(folder / file) as draft:
            draft.write_text(content, encoding="utf-8")
            draft.replace(folder / file)
    print(folder / "card.html")
    if policy:
        print(explain(list(Policy.read(policy).judge(settings))))
    return card.verdict != "red"
