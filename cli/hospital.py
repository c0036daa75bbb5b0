"""Commands of a hospital that takes part in real runs (docs/deployment.md)."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from click import UsageError, get_current_context

from cli.command import SITE, STORE_DIR, Site, StoreDir, command, private
from cli.places import HERE, HOSPITAL, Hospital
from strategies.protocol.files import expand

app = typer.Typer(
    help="A hospital: make its folder and keys, approve code, start.", no_args_is_help=True
)


Data = Annotated[
    Path | None, typer.Option(help="Its folder of images, or its manifest (docs/data.md).")
]
Members = Annotated[
    str,
    typer.Option(
        help="File with the keys of all hospitals; or first-use; or none (open runs only)."
    ),
]
NewMembers = Annotated[
    str | None,
    typer.Option(
        help="File with the keys of all hospitals; or first-use; or none (open runs only). Without "
        "it: members in the hospital's folder."
    ),
]
Model = Annotated[
    str | None, typer.Option(help="The hospital's first network. Without it: the run's.")
]
Folder = Annotated[
    Path | None, typer.Option(help="The hospital's folder. Without it: ~/fedhandoff/NAME.")
]


@command(app, "hospital init graz --data ~/skin --server fl.example.org:9092")
def init(
    name: Annotated[str, typer.Argument(help="The hospital's name in the consortium.")],
    data: Data = None,
    server: Annotated[str | None, typer.Option(help="The server's host:port.")] = None,
    members: NewMembers = None,
    model: Model = None,
    folder: Folder = None,
) -> None:
    """Make a hospital's folder, with hospital.toml, policy, keys and code.

    In a terminal it asks for missing values. Read the policy before the first run.
    """
    private()
    images = _images(data)
    address = server or _ask("--server", "The server's host:port")
    with _making(folder, name, images, address, members, model) as place:
        print(f"{place / name}.pub goes to the server's operator, who registers it.")


@command(app, "hospital join graz.invitation --data ~/skin --yes")
def join(
    invitation: Annotated[Path, typer.Argument(help="The operator's invitation.")],
    data: Data = None,
    members: NewMembers = None,
    model: Model = None,
    folder: Folder = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Approve the code without a question.")
    ] = False,
) -> None:
    """Join a consortium: approve its code, and answer its invitation.

    It shows the code, and how the default policy judges the default settings. It asks for approval.
    Then it makes the hospital's folder, as init does. The keys never leave the hospital.
    """
    from cli.authority import policy
    from client_app.authority.policy import DEFAULTS
    from deploy.invitation import read_invitation, write_answer

    private()
    found = read_invitation(invitation)
    print(f"{found.hospital} is invited to {found.server} until {found.ends}.")
    print(f"Certificate of the authority, SHA-256: {found.fingerprint}")
    print(f"Code, which is that of this clone: {found.code}")
    print("The default settings of a run, by the default policy:")
    policy(DEFAULTS, "")
    images = _images(data)
    if not yes and (_ask("--yes", "Approve this code and join? (yes or no)") != "yes"):
        print("You have not joined: the answer was not 'yes'.")
        raise typer.Exit(1)
    with _making(folder, found.hospital, images, found.server, members, model) as place:
        answer = write_answer(place, found)
    print(f"{answer} goes to the server's operator, who accepts it.")


@contextmanager
def _making(
    folder: Path | None, name: str, data: str, server: str, members: str | None, model: str | None
) -> Iterator[Path]:
    """Make a hospital's folder; after the block its hospital.toml, with these keys."""
    from cli.authority import policy
    from deploy.approved import approve
    from deploy.credentials import make_key
    from deploy.own_file import PLACE, making_own
    from deploy.server import APP

    place, known = folder or expand(PLACE) / name, None
    if members not in ("first-use", "none"):
        known = expand(members).absolute() if members else place / "members"
        members = str(known) if members else "members"
    own = {"name": name, "data": data, "server": server, "members": members, "model": model}
    with making_own(place, HOSPITAL, {**own, "policy": "policy.toml", "store": "store"}):
        if not (place / "policy.toml").exists():
            policy(place / "policy.toml", None)
        make_key(place, name)
        print(f"{approve(place, APP)} is the approved code: compare it with the other hospitals'.")
        print("This line goes to the other hospitals, for their members:")
        _print_identity(place, name, place / "store", members=known)
        yield place


def _print_identity(
    folder: Path, name: str, store_dir: Path, own: Path | None = None, members: Path | None = None
) -> None:
    """Print the hospital's line for the members, and add it to its own file of members.

    `own` is the file of its keys, if it is not in the store.
    """
    from client_app.authority.identity import Identity
    from client_app.authority.members import add_member, member_line
    from deploy.hospital import check_known_store

    check_known_store(folder, name, store_dir)
    member = Identity.load(name, own or store_dir / name / "identity").member
    if members:
        add_member(members, name, str(member))
    print(member_line(name, member), end="")


def _images(data: Path | None) -> str:
    """The absolute path of the hospital's images."""
    return str((data or expand(_ask("--data", "The hospital's images"))).absolute())


def _ask(option: str, question: str) -> str:
    if not sys.stdin.isatty():
        raise UsageError(f"Missing option '{option}'.", get_current_context())
    return str(typer.prompt(question))


@command(app, "hospital key --hospital graz")
def key(hospital: Hospital = HERE, site: Site = SITE) -> None:
    """Make the key with which the server knows the hospital, if needed."""
    from deploy.credentials import make_key

    make_key(hospital, site)
    path = hospital / site
    print(
        f"{path}.pub  goes to the server's operator, who registers it\n"
        f"{path}.key  stays here; keep it secret"
    )


@command(app, "hospital identity --hospital graz")
def identity(hospital: Hospital = HERE, site: Site = SITE, store_dir: StoreDir = STORE_DIR) -> None:
    """Print the hospital's line for the members; make its keys if needed."""
    private()
    own = get_current_context().lookup_default("identity")
    _print_identity(hospital, site, store_dir, own and Path(own))


@command(app, "hospital approve --hospital graz")
def approve(
    hospital: Hospital = HERE,
    checkout: Annotated[
        Path | None,
        typer.Argument(help="The clone whose code is approved. Without it: this one."),
    ] = None,
) -> None:
    """Approve the code to run."""
    from deploy.approved import approve
    from deploy.server import APP

    code = approve(hospital, checkout or APP)
    print(f"{code} is approved: compare this hash with the other hospitals'.")


@command(app, "hospital start --hospital graz")
def start(
    server: Annotated[str, typer.Option(help="The server's host:port.")],
    data_dir: Annotated[Path, typer.Option(help="The hospital's images (docs/data.md).")],
    members: Members,
    hospital: Hospital = HERE,
    site: Site = SITE,
    store_dir: StoreDir = STORE_DIR,
    policy: Annotated[
        Path | None,
        typer.Option(
            help="The hospital's policy. Without it: policy.toml in its folder, if there is one."
        ),
    ] = None,
    runtime_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="Local port for the hospital's own processes, for a firewall rule. Without it: "
            "any.",
            show_default=False,
        ),
    ] = 0,
    node_config: Annotated[
        str, typer.Option(help="More keys of the node-config, such as \"model='resnet18'\".")
    ] = "",
) -> None:
    """Start the hospital's SuperNode, and keep it running."""
    from deploy import hospital as deployed

    deployed.start_supernode(
        deployed.Hospital(
            folder=hospital,
            server=server,
            name=site,
            data_dir=data_dir,
            store_dir=store_dir,
            members=members,
            policy=policy,
            own_config=get_current_context().lookup_default("own_config") or {},
            node_config=node_config,
            runtime_port=runtime_port,
        )
    )


@command(app, "hospital status --hospital graz")
def status(hospital: Hospital = HERE) -> bool:
    """Show the hospital's process, code, certificates and free disk space."""
    from deploy.status import status

    return not status(hospital)
