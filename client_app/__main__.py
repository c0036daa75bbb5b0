"""Commands for a hospital: `python -m client_app <command> --help`."""

import argparse
import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path

from client_app.afterwards.commands import add_commands
from client_app.authority import ledger_view
from client_app.authority.identity import Identity
from client_app.authority.ledger import path_of, read
from client_app.authority.ledger_index import BrokenLedger
from client_app.authority.members import add_member, member_line, read_members, remove_member
from client_app.authority.node_config import OwnError
from client_app.authority.policy import Policy, PolicyError, explain, write_policy
from client_app.store import DEFAULT, own_draft
from strategies.protocol.names import check_name
from strategies.protocol.run_config import changes_of
from strategies.protocol.settings import Settings, SettingsError, complete
from strategies.protocol.text import Screen


def main() -> None:
    """Run one command."""
    Screen.install()
    parser = argparse.ArgumentParser(prog="python -m client_app", description=__doc__)
    commands = parser.add_subparsers(required=True)
    hospital = argparse.ArgumentParser(add_help=False)
    hospital.add_argument("--site", default="hospital", type=_name, help="the hospital's name")
    hospital.add_argument("--store-dir", type=Path, default=DEFAULT, help="the hospital's store")
    for command, about in (
        (preflight, "check the hospital's images"),
        (identity, "show the hospital's key"),
        (ledger, "check and show the ledger: requests and answers"),
    ):
        add = commands.add_parser(command.__name__, help=about, parents=[hospital])
        add.set_defaults(command=command)
        if command is preflight:
            images = "the hospital's folder of images, or its manifest"
            add.add_argument("--data-dir", type=Path, required=True, help=images)
            add.add_argument(
                "--dataset", choices=["folder", "manifest"], help="default: manifest if it has one"
            )
            add.add_argument("--run-config", help='settings of the run: "image-size=64 seed=1"')
            add.add_argument("--policy", type=Path, help="the policy that judges these settings")
        if command is ledger:
            add.add_argument("--html", type=Path, help="also write the ledger as this HTML page")
    add = commands.add_parser("members", help="list or change the members", parents=[hospital])
    add.set_defaults(command=members)
    add.add_argument("--members", type=Path, help="the file; default: the file of 'first-use'")
    add.add_argument(
        "change", nargs="*", metavar="list | add NAME KEY | remove NAME", help="default: list"
    )
    add = commands.add_parser(
        "policy", help="write a policy with the defaults, or judge a run by a policy"
    )
    add.set_defaults(command=policy)
    add.add_argument("file", type=Path, help="the policy; a new file gets the defaults")
    add.add_argument("--run-config", help="a run to judge: \"strategy='cwc' train.epochs=5\"")
    add_commands(commands, hospital, _run_config)
    arguments = parser.parse_args()
    for name, value in vars(arguments).items():
        if isinstance(value, Path):
            setattr(arguments, name, value.expanduser())
    os.umask(0o077)  # no other user of the machine may read the hospital's files
    try:
        sys.exit(arguments.command(arguments))
    except (ValueError, OSError) as error:  # a user can mend these
        parser.error(error.explain() if isinstance(error, OwnError) else str(error))


def identity(arguments: argparse.Namespace) -> int:
    """Print the hospital's line for the file of members; make its keys if it has none."""
    name = arguments.site
    file = arguments.store_dir / name / "identity"
    print(member_line(name, Identity.load(name, file).member), end="")
    return 0


def members(arguments: argparse.Namespace) -> int:
    """Change a hospital's file of members, if the arguments name a change, and print its lines."""
    path = arguments.members or arguments.store_dir / arguments.site / "members"
    match arguments.change:
        case [] | ["list"]:
            pass
        case ["add", name, key]:
            add_member(path, name, key)
        case ["remove", name]:
            remove_member(path, name)
        case _:
            raise SettingsError("Say list, add NAME KEY, or remove NAME.")
    print("".join(member_line(*each) for each in read_members(path).items()), end="")
    return 0


def ledger(arguments: argparse.Namespace) -> int:
    """Check a hospital's ledger, and print it.

    Raises:
        SettingsError: The ledger cannot be read.
    """
    path = path_of(arguments.site, arguments.store_dir)
    lines, broken = [], ""
    try:
        for line in read(path):
            lines.append(line)
    except BrokenLedger as error:
        broken = str(error)
    except OSError as error:
        raise SettingsError(f"There is no ledger to read: {error}") from error
    newest = lines[-1].hash if lines else "-"
    verdict = f"{broken or 'The chain is intact.'} Valid lines: {len(lines)}. Hash of the last: "
    verdict += f"{newest}. Keep both on another machine: they show later if lines are missing."
    print(ledger_view.text(lines, verdict))
    if arguments.html:
        html = ledger_view.page(arguments.site, lines, verdict, not broken)
        arguments.html.write_text(html, encoding="utf-8")
    return int(bool(broken))


def policy(arguments: argparse.Namespace) -> int:
    """Write a policy if the file is new; print the rulings on a run if one is given."""
    path = arguments.file
    if not path.exists():
        write_policy(path)
        print(f"{path} has the defaults now: read it, and change rules as needed.")
    rules = Policy.read(path)
    if arguments.run_config is None:
        return 0
    settings = Settings.parse(_run_config(arguments.run_config))
    rulings = list(rules.judge(settings))
    print(explain(rulings))
    if said := rules.embeddings_sentence(settings):
        print(said)
    return int(not all(ruling.holds for ruling in rulings))


def preflight(arguments: argparse.Namespace) -> int:
    """Check a hospital's images; print the result and write it into the hospital's store.

    Raises:
        SettingsError: Settings or the policy cannot be used, or the store would be too large.
    """
    import torch  # takes seconds

    from client_app.datasets.own import own_data
    from client_app.datasets.preflight.card import examine
    from client_app.datasets.preflight.page import page, text

    path = str(arguments.data_dir.absolute())
    dataset = f"{arguments.dataset}:{path}" if arguments.dataset else own_data(path)
    settings = replace(Settings.parse(_run_config(arguments.run_config)), dataset=dataset)
    torch.set_num_threads(settings.cpu_threads)

    def show(what: str, done: int, total: int) -> None:
        print(f"{what} images: {done} of {total}", end="\r", file=sys.stderr, flush=True)

    store, policy = arguments.store_dir, arguments.policy
    terminal = sys.stderr.isatty()  # elsewhere lines are logged
    try:
        progress = show if terminal else None
        card, survey = examine(arguments.site, settings, store, progress, policy)
    except PolicyError as error:
        raise SettingsError(error.explain()) from error
    if terminal:
        print(" " * 60, end="\r", file=sys.stderr)
    print(text(card))
    folder = store / arguments.site / "preflight"
    content = json.dumps({"verdict": card.verdict, **asdict(card)}, indent=1)
    written = {"card.json": content, "card.html": page(card, survey)}
    for file, content in written.items():
        with own_draft(folder / file) as draft:
            draft.write_text(content, encoding="utf-8")
            draft.replace(folder / file)
    print(folder / "card.html")
    if policy:
        print(explain(list(Policy.read(policy).judge(settings))))
    return int(card.verdict == "red")


def _name(text: str) -> str:
    try:
        return check_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _run_config(text: str | None) -> dict[str, object]:
    """The default settings with the changes of `--run-config`.

    Raises:
        SettingsError: The changes cannot be read, or name an unknown setting.
    """
    return complete(changes_of([text] if text else []))


if __name__ == "__main__":
    main()
