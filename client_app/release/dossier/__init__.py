"""The dossier of a release, for a data protection officer: the buffer, its checks and the attacks.

    <store>/<site>/dossiers/<run>/dossier.json    the dossier; its SHA-256 travels with the buffer
    <store>/<site>/dossiers/<run>/dossier.html    the dossier as a page
    <store>/<site>/dossiers/<run>/dossier.sig     the hospital's signature; a simulation has none
    <store>/<site>/dossiers/<run>/<SHA-256>/      an earlier dossier of the run, with these files

contents.py makes the contents, law.py relates figures to legal questions, page.py makes the page,
and files.py writes, signs and checks the files. The dossier stays at the hospital, since its
figures are exact. Others see only its hash, on the hospital's card and in the buffer. They can ask
the hospital for the file with this hash.
"""

from client_app.authority.identity import Identity
from client_app.release.buffer.job import Release
from client_app.release.dossier.contents import contents
from client_app.release.dossier.files import write
from client_app.request import Request


def keep_dossier(request: Request, release: Release) -> str:
    """Write the dossier of a release into the hospital's store, and return its SHA-256.

    If a run asks for the same buffer again, the dossier stays the same; with another policy or code
    it is a new one.
    """
    hospital = request.hospital
    folder = hospital.store.folder / "dossiers" / request.run.folder.name
    identity = Identity.load(hospital.name, hospital.identity) if hospital.policy else None
    return write(folder, contents(request, release), identity)
