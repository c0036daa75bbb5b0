"""The pages in a real browser, Debian's Chromium: as they look, not as they were written."""

import os
import shutil
from base64 import b64encode
from math import isfinite
from time import monotonic

import numpy as np
import pytest
from playwright.sync_api import sync_playwright

from client_app.afterwards.past_run import PastRun
from client_app.afterwards.report import page as own_page
from client_app.afterwards.worth_here import released_assessments
from client_app.authority.ledger import Line, append, path_of
from client_app.authority.ledger_view import page as ledger_page
from client_app.datasets.findings import Finding
from client_app.datasets.listing import Unusable
from client_app.datasets.preflight.card import Card
from client_app.datasets.preflight.page import page as card_page
from client_app.release.dossier.page import page as dossier_page
from pages.pictures import pngs_by_class
from server_app.compare_page import page as comparison_page
from server_app.comparison import compare
from server_app.results import Results
from strategies.engine.courier import Awaited
from strategies.engine.shelf import Shelf
from strategies.engine.state import State
from strategies.protocol.settings import defaults
from tests.client_app.test_dossier import written
from tests.fakes import settings
from tests.server_app.fake_runs import HOSTILE, RUNS
from tests.server_app.test_compare import write_run

pytestmark = pytest.mark.slow

# Widths of a screen or of paper in pixels, whether it is dark, and whether it is paper.
SCREENS = {
    "wide, light": (1280, "light", "screen"),
    "desktop, light": (1400, "light", "screen"),
    "narrow, dark": (390, "dark", "screen"),
    "narrow, light": (390, "light", "screen"),
    "paper": (720, "dark", "print"),
}
# Text whose contrast with what is behind it is too low to be read (WCAG: 4.5).
FAINT = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = color => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = element => {
    for (let each = element; each; each = each.parentElement) {
      const color = rgba(getComputedStyle(each).backgroundColor);
      if (color[3] > 250) return color;
    }
  };
  const seen = new Map();
  const texts = "p, li, a, td, th, summary, figcaption, h2, span, text";
  for (const each of document.querySelectorAll(texts)) {
    const style = getComputedStyle(each);
    if (!each.textContent.trim() || style.fontSize === "0px") continue;
    const color = each.tagName === "text" ? style.fill : style.color;
    const place = each.tagName === "text" ? each.closest("figure") : each;
    const key = color + getComputedStyle(place).backgroundColor + each.className;
    if (seen.has(key)) continue;
    const [a, b] = [light(rgba(color)), light(behind(place))].sort((x, y) => y - x);
    seen.set(key, [(a + 0.05) / (b + 0.05), each.tagName, each.textContent.slice(0, 40)]);
  }
  return [...seen.values()].filter(([contrast]) => contrast < 4.5);
}"""
FOLD = """folded => document.querySelectorAll("details").forEach(e => e.open = !folded)"""
# What sticks out to the right of a page, outside of boxes that scroll.
OVERFLOW = """() => document.documentElement.scrollWidth - document.documentElement.clientWidth"""
# Tables that a reader has to move to see all of.
CUT = """() => [...document.querySelectorAll(".wide")].filter(
  e => !e.querySelector(".cells") && e.scrollWidth > e.clientWidth).map(e => e.ariaLabel)"""
# Whether the first cell, or line, with a text is seen as a whole.
SEEN = """text => {
  const found = [...document.querySelectorAll("td, li")].find(e => e.textContent.includes(text));
  const box = found.getBoundingClientRect();
  return found.checkVisibility() && box.width > 0 && box.right <= innerWidth;
}"""
# Texts of pictures that lie outside of their picture, as a legend did.
CLIPPED = """() => [...document.querySelectorAll("figure svg[role=img] text")].filter(text => {
  const [box, svg] = [text, text.closest("svg[role=img]")].map(e => e.getBoundingClientRect());
  return svg.width && (box.left < svg.left - 8 || box.right > svg.right + 8);
}).map(text => text.textContent)"""

# Numbers in tables that are broken over several lines.
BROKEN = """() => [...document.querySelectorAll("td")].filter(cell => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  return /^[+-]?[0-9.]+$/.test(cell.textContent.trim()) && range.getClientRects().length > 1;
}).map(cell => cell.textContent)"""


@pytest.fixture(scope="module")
def browser():
    """Chromium; without it tests are skipped, and fail where .ci/run says that it must be there."""
    if (path := shutil.which("chromium")) is None:
        missing = "There is no Chromium: apt-get install chromium"
        pytest.fail(missing) if "FEDHANDOFF_BROWSER" in os.environ else pytest.skip(missing)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


def comparison(folder):
    """Of two methods over two seeds."""
    for seed in (0, 1):
        for strategy, values in (("cwt", (0.6, 0.8)), ("rwt", (0.7 + 0.01 * seed, 0.9))):
            write_run(folder / f"{strategy}-{seed}", strategy, seed, values)
    return comparison_page(compare([folder]))


def ledger(folder):
    """Two lines, one of them with all that a server says of a run."""
    left = [{"name": "model", "bytes": 400_000, "sha256": "3f" * 32}]
    entry = {"run": "7", "time": "2026-11-22T14:20:03", "verb": "train", "round": 1, "left": left}
    terms = {"settings": {"strategy": "W" * 200}, "code": "3f" * 32, "policy": "77" * 32}
    lines = [Line(1, "3f" * 32, {**entry, **terms}), Line(2, "77" * 32, entry)]
    return ledger_page("graz", lines, "2 lines, unbroken. The last hash is " + "77" * 32, True)


def card(folder):
    """Of images some of which cannot be used."""
    counts = {"benign": {"train": 40, "test": 10}, "melanoma": {"train": 4, "test": 1}}
    findings = [Finding("rare-classes", "Classes of few images: 1.", "Add some.", "amber")]
    unusable = [Unusable("melanoma/" + "W" * 200, "is not an image")]
    found = Card("graz", "/data/skin", {}, findings, 55, unusable, {}, counts, 40, counts)
    return card_page(found, None)


def own_report(folder):
    """Of a run with long names and synthetic images, whose models are not at home."""
    of_model = {"num-examples": 40.0, "calibration-error": 0.2, "confidence-in-bin-3": 0.35}
    of_model |= {f"images-of-class-{k}": 20.0 for k in (0, 1)} | {"images-in-bin-3": 40.0}
    for name in ("balanced-accuracy", "accuracy", "auroc", "gain", "right-in-bin-3"):
        of_model |= {name: 0.6, f"{name}-low": 0.5, f"{name}-high": 0.7}
    for k, share in ((0, 0.0), (1, 1.0)):
        of_model |= {f"recall-of-class-{k}{end}": share for end in ("", "-low", "-high")}
        of_model |= {f"answers-{a}-of-class-{k}": 10.0 for a in (0, 1)}
    tested = {
        f"{m}/{n}": v for m in ("standalone", "ensemble", "W" * 20) for n, v in of_model.items()
    }
    released = {"release-passed": 1.0, "release-nearer-to-training": 0.6, "gan-private": 0.0}
    classes = {"name": "manifest", "values": {"classes": ["benign", HOSTILE[0]]}}
    card = {"name": "card", "values": {"release": "16 synthetic images passed."}}
    entry = {"run": "7", "time": "2026-11-22T14:20:03+00:00", "round": 1}
    terms = {
        "settings": {**defaults(), "strategy": "W" * 200},
        "code": "3f" * 32,
        "policy": "77" * 32,
    }
    made = [classes, card, {"name": "metrics", "values": released}]
    ledger = path_of("graz", folder)
    append(ledger, {**entry, "verb": "query.prepare", "left": made}, terms)
    left = [{"name": "metrics", "values": tested}]
    append(ledger, {**entry, "verb": "evaluate", "left": left}, terms)
    failure = {"class": "policy", "reason": "W" * 200}
    append(ledger, {**entry, "verb": "train", "failure": failure}, terms)
    past = PastRun.find("graz", folder, None)
    return own_page(past, released_assessments(past), "", None)


def dossier(folder):
    """Of a hospital's synthetic images, with the first of a class."""
    pixels = np.arange(8 * 64, dtype=np.uint8).reshape(8, 1, 8, 8)
    png = pngs_by_class(pixels, np.zeros(8, np.int64), ["a"])["a"]
    told = written()
    told["leaves"]["pictures"] = {"a": b64encode(png).decode()}
    return dossier_page(told, "3f" * 32, "")


OTHERS = {each.__name__: each for each in (comparison, ledger, card, own_report, dossier)}
# What somebody has to see who reads a page on a phone: a verdict, or what speaks against it.
DECISIVE = {
    "learnt": ["better", "0.500 (benign)"],
    "handed_on_with_images": ["pass", "FAIL"],
    "comparison": ["2 seeds: too few to say"],
    "ledger": ["model: 400,000 bytes"],
    "card": ["Add some."],
    "own_report": ["above\N{NO-BREAK SPACE}chance", "FAIL"],
    "dossier": ["cannot tell", "Not measured. Synthetic images carry no metadata"],
}


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    """Every page in a window of its own, with its run, and what the browser complains of."""
    complaints = []

    def open_(markup):
        page = browser.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url))
        page.set_content(markup)
        return page

    reports = {name: (open_(run().page()), run().summary) for name, run in RUNS.items()}
    folder = tmp_path_factory.mktemp("runs")
    return {**reports, **{n: (open_(make(folder)), None) for n, make in OTHERS.items()}}, complaints


@pytest.fixture
def shown(opened):
    """A page on one of `SCREENS`; whatever the browser complains of fails the test."""
    pages, complaints = opened

    def show(name, screen="wide, light"):
        page, summary = pages[name]
        width, scheme, media = SCREENS[screen]
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(media=media, color_scheme=scheme)
        return page, summary

    yield show
    assert not complaints


@pytest.mark.parametrize("name", [*RUNS, *OTHERS])
def test_a_page_fits_every_screen(shown, name):
    for screen in SCREENS:
        page, _ = shown(name, screen)
        for folded in (True, False):
            page.evaluate(FOLD, folded)
            assert page.evaluate(OVERFLOW) == 0, screen
            assert page.evaluate(BROKEN) == [], screen
        if name != "hostile":  # whose names are longer than any that fits
            assert page.evaluate(CLIPPED) == [], screen


@pytest.mark.parametrize("name", DECISIVE)
def test_what_decides_is_seen_on_every_screen(shown, name):
    """On a narrow one each row of a table is a card, with the title of each cell beside it."""
    for screen in ("narrow, light", "desktop, light"):
        page, _ = shown(name, screen)
        page.evaluate(FOLD, False)
        assert page.evaluate(CUT) == [], screen
        for text in DECISIVE[name]:
            assert page.evaluate(SEEN, text), (screen, text)
    card = shown(name, "narrow, light")[0].locator("table.cards td[data-label]").first
    assert card.evaluate("e => getComputedStyle(e.parentElement).display") == "block"
    label = card.evaluate("e => getComputedStyle(e, '::before').content")
    assert label.strip('"') == card.get_attribute("data-label")


@pytest.mark.parametrize("screen", SCREENS)
def test_all_text_can_be_read(shown, screen):
    runs = (
        "learnt",
        "learnt_nothing",
        "handed_on_with_images",
        "one_missing",
        "in_tasks",
        "by_plan",
    )
    for name in (*runs, *OTHERS):
        assert shown(name, screen)[0].evaluate(FAINT) == []


@pytest.mark.parametrize("name", ["learnt", "learnt_nothing", "one_model", "one_missing", "fifty"])
def test_the_numbers_are_those_of_the_summary(shown, name):
    page, summary = shown(name)
    assert page.inner_text(".headline b") == f"{summary.headline['value']:.3f}"
    heats = page.locator("table.heat")
    assert _cells(heats.last) == [
        [f"{share:.3f}" if isfinite(share) else "–" for share in row]
        for row in summary.balanced_accuracy_matrix
    ]
    told = [r for r in summary.assessments if r["held"] and any(c["recall"] for c in r["classes"])]
    held = sorted(told, key=lambda r: r["hospital"])
    assert _cells(heats.first) == [
        [_three_digits(row["classes"][k]["recall"]) for row in held]
        for k in range(len(summary.classes))
    ]
    table = page.locator("[aria-label^='Balanced accuracy alone'] table")
    for line, row in zip(_cells(table), held, strict=True):
        own = row["balanced_accuracy"]
        assert line[0] == row["hospital"]
        assert line[2].split()[0] == (f"{own['value']:.3f}" if own else "–")


@pytest.mark.parametrize("name", ["learnt", "one_model", "fifty", "in_tasks"])
def test_every_picture_has_a_name_and_a_sentence(shown, name):
    page, _ = shown(name)
    names = page.eval_on_selector_all(
        "figure svg:not([aria-hidden])", "all => all.map(e => e.getAttribute('aria-label'))"
    )
    assert names
    assert all(names)
    sentences = page.eval_on_selector_all(
        "figure", "all => all.map(e => e.querySelector('figcaption').textContent.trim())"
    )
    assert all(text.endswith(".") for text in sentences)


@pytest.mark.parametrize("name", RUNS)
def test_contents_lead_to_one_place_each(shown, name):
    counts = shown(name)[0].eval_on_selector_all(
        "nav a", "all => all.map(a => document.querySelectorAll(a.getAttribute('href')).length)"
    )
    assert counts
    assert set(counts) == {1}


@pytest.mark.parametrize("screen", ["narrow, light", "narrow, dark", "desktop, light"])
def test_the_page_follows_a_run_to_its_end(browser, screen, tmp_path, monkeypatch):
    """Nobody touches the browser: the page loads itself again, and stays after the end."""
    monkeypatch.setattr("server_app.live.PAUSE", 0.2)
    width, scheme, _ = SCREENS[screen]
    results, _ = Results.open(settings(output_dir=str(tmp_path)))
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto((results.path / "report.html").as_uri())
    assert "0 of" in page.inner_text("[role=status]")
    page.wait_for_timeout(200)  # until the next report is due, on a fast machine, too
    for event in RUNS["one_missing"]().events:
        if event.round > 2:
            break
        results.record(event)
    results.round_finished(1)
    results.waits_for([Awaited("graz", "train", monotonic() - 90)])
    results._write_live_page()
    page.get_by_text("waits for graz to train").wait_for()
    page.get_by_text("linz failed to train (timeout)").wait_for()
    assert page.locator("main figure svg").first.is_visible()
    assert page.evaluate(OVERFLOW) == 0
    assert page.evaluate(CLIPPED) == []
    assert page.evaluate(FAINT) == []
    if folder := os.environ.get("FEDHANDOFF_PICTURES"):
        page.screenshot(path=f"{folder}/live-{screen}.png")
    results.finish(State(Shelf(results.path / "checkpoint"), "run"))
    page.locator("[role=status]").wait_for(state="detached")
    assert page.locator("meta[http-equiv=refresh]").count() == 0
    page.close()


def test_names_from_outside_do_nothing(shown):
    page, _ = shown("hostile")
    assert page.title() != "hit"
    assert page.locator("main script, main img").count() == 0
    assert page.get_by_text(HOSTILE[0], exact=True).count() > 0


def test_on_paper_everything_is_open_and_light(shown):
    page, _ = shown("one_model", "paper")
    page.evaluate(FOLD, True)
    hidden = "all => all.filter(e => !e.checkVisibility({contentVisibilityAuto: true})).length"
    assert page.locator("details table").count() > 0
    assert page.eval_on_selector_all("details table", hidden) == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def _three_digits(told):
    return f"{told['value']:.3f}" if told else "–"


def _cells(table):
    """The texts of a table's cells, without its titles."""
    return table.evaluate(
        "table => [...table.tBodies[0].rows]"
        ".map(row => [...row.cells].filter(c => c.tagName === 'TD').map(c => c.textContent))"
    )
