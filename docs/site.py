"""Makes a site of docs/, whose pages stay plain Markdown that reads on GitHub as well.

    uv run python docs/site.py <folder>

A page may link to any file of the repository. The site has a page with its text, under source/,
so that it is whole wherever it is read, also without a network.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from os.path import normpath, relpath
from pathlib import Path, PurePosixPath

DOCS = Path(__file__).parent
ROOT = DOCS.parent
# What a link of Markdown points at, if that is a file.
LINK = re.compile(r"(?<=\]\()(?!https?:|#|/)([^)#\s]+)(?=(?:#[^)\s]*)?\))")
OWN = (".md", ".png", ".ipynb")  # what the site has of docs/; of other files, those linked to
LANGUAGES = {".py": "python", ".toml": "toml", ".service": "ini"}


def main(folder: Path) -> None:
    """Write the site; a link that leads nowhere ends it."""
    with tempfile.TemporaryDirectory() as work:
        write_pages(Path(work, "pages"))
        shutil.copy(DOCS / "site.toml", work)
        command = ["zensical", "build", "--strict", "--config-file", "site.toml"]
        subprocess.run(command, cwd=work, check=True)
        shutil.copytree(Path(work, "site"), folder, dirs_exist_ok=True)


def write_pages(folder: Path) -> None:
    """Write the pages of docs/, and one for each file and folder that they link to.

    Raises:
        ValueError: A page links to what is not there.
    """
    waiting = [path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*") if path.suffix in OWN]
    done = set(waiting)
    while waiting:
        source = waiting.pop()
        place = folder / place_of(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.suffix != ".md":
            shutil.copyfile(ROOT / source, place)
            continue
        text, links = page(source)
        place.write_text(text, encoding="utf-8")
        waiting += links - done
        done |= links


def page(source: str) -> tuple[str, set[str]]:
    """The page about a path in the repository, and the paths that it links to.

    Raises:
        ValueError: It links to what is not there.
    """
    path, links = ROOT / source, set()

    def relocate(link: re.Match[str]) -> str:
        target = normpath(PurePosixPath(source).parent / link[1])
        if target.startswith("..") or not (ROOT / target).exists():
            raise ValueError(f"{source} links to {link[1]}, which is not there.")
        links.add(target)
        return relpath(place_of(target), PurePosixPath(place_of(source)).parent)

    if path.is_dir():
        names = sorted(each.name for each in path.glob("[!_.]*"))
        return f"# {source}/\n\n" + "".join(f"- `{name}`\n" for name in names), links
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        return LINK.sub(relocate, text), links
    language = LANGUAGES.get(path.suffix, "text")
    return f"# {source}\n\n````{language}\n{text}````\n", links


def place_of(source: str) -> str:
    """Where the site has what has this path in the repository."""
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    return f"source/{source}" + ".md" * (not source.endswith(".md"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
