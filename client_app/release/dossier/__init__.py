"""The dossier of a release: what leaves, what was attacked and how, for a data protection officer.

    <store>/<site>/dossiers/<run>/dossier.json    all of it; its SHA-256 travels with the buffer
    <store>/<site>/dossiers/<run>/dossier.html    the same as a page
    <store>/<site>/dossiers/<run>/dossier.sig     the hospital's signature; a simulation has none

contents.py says what is in it, law.py which legal question a figure speaks to and which it does
not, page.py how it looks, and files.py how it is written, signed and checked. The dossier stays at
the hospital: its figures are exact. Others see its hash, on the hospital's card and in its buffer,
and can ask the hospital for the file that has it.
"""

from client_app.authority.identity import Identity
from client_app.release.buffer.job import Release
from client_app.release.dossier.contents import contents
from client_app.release.dossier.files import write
from client_app.request import Request


def keep_dossier(request: Request, release: Release) -> str:
    """Write the dossier of a release into the hospital's store; its SHA-256.

    A run that asks for the same buffer once more gets the dossier that is there.
    """
    hospital = request.hospital
    folder = hospital.store.folder / "dossiers" / request.run.folder.name
    identity = Identity.of(hospital.name, hospital.identity) if hospital.policy else None
    return write(folder, contents(request, release), identity)
