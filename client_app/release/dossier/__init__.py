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
