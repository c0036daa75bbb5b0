"""The report of a run: one HTML page that needs nothing else, on a screen or on paper.

Every text from outside, such as a hospital's name, its reason for a failure or a setting, reaches
the page through `escape`, or through matplotlib, which escapes what it writes into an SVG.
"""

from collections.abc import Iterable
from html import escape
from math import isfinite, nan

from server_app import plots
from server_app.measures import LAST_ROUNDS, Summary, finished

LISTED = 20  # failures on the page; summary.json has all of them
COLUMNS = 6  # hospitals in the table of synthetic images

STYLE = """
body { font: 15px/1.5 Helvetica, Arial, sans-serif; color: #222; max-width: 48em;
       margin: 3em auto; padding: 0 1em; overflow-wrap: break-word; }
h1 { font-size: 1.8em; font-weight: 600; margin: 0; }
h2 { font-size: 1.1em; font-weight: 600; margin: 2.5em 0 0; padding-top: .6em;
     border-top: 1px solid #ccc; break-after: avoid; }
p { color: #666; font-size: .9em; margin: .2em 0 1em; }
pre { font-size: .85em; columns: 2; white-space: pre-wrap; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1.5em 0 1em; }
td, th { text-align: left; font-weight: normal; vertical-align: top; padding: .15em 2em .15em 0; }
th { color: #666; font-size: .9em; border-bottom: 1px solid #ccc; }
svg { display: block; max-width: 100%; height: auto; break-inside: avoid; }
svg text { font-family: Helvetica, Arial, sans-serif !important; }
.failures { border-left: 4px solid #c8553d; background: #fbf1ee; padding: .6em 1em; }
.failures p { color: #222; font-size: 1em; }
.failures table { font-size: .85em; margin: 0; }
.failures td, .failures th { padding-right: 1em; }
"""


def render(name: str, summary: Summary, config: str) -> str:
    """Make the page.

    Args:
        name: Of the run.
        summary: What the run came to.
        config: Its settings, as TOML.
    """
    body = _head(name, summary)
    if summary.status != "completed":
        body += _failures(summary)
    if summary.history["round"]:
        body += _accuracies(summary)
    if _is_serial(summary):
        body += _visits(summary)
    if any(each["visited"] or each["missed"] for each in summary.participation.values()):
        body += _participation(summary)
    if summary.synthetic:
        body += _synthetic(summary)
    body += _costs(summary)
    body += f"<h2>Settings</h2>\n<pre>{escape(config)}</pre>\n"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(name)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{body}</body>\n</html>\n"
    )


def _head(name: str, summary: Summary) -> str:
    facts = [
        name,
        summary.status,
        f"rounds: {summary.rounds}",
        f"hospitals: {len(summary.hospitals)}",
        f"models: {len(summary.models)}",
        plots.duration(summary.wall_seconds),
    ]
    if summary.resumed:
        facts.append(f"interrupted and resumed: {summary.resumed}")
    rows = [
        [
            "federation",
            summary.federation_accuracy,
            summary.federation_balanced_accuracy,
            summary.federation_auroc,
        ],
        [
            "ensemble",
            summary.ensemble_accuracy,
            summary.ensemble_balanced_accuracy,
            summary.ensemble_auroc,
        ],
        [
            "personalised",
            summary.personalized_accuracy,
            summary.personalized_balanced_accuracy,
            summary.personalized_auroc,
        ],
        ["origin", summary.origin_accuracy, nan, nan],
        ["after visit", summary.accuracy_after_visit, nan, nan],
    ]
    return (
        f"<h1>{escape(summary.strategy)}</h1>\n<p>{escape(' · '.join(facts))}</p>\n"
        f"{_table(['', 'accuracy', 'balanced accuracy', 'area under ROC curve'], rows)}"
        "<p>After the last evaluated round, on the hospitals' own test images, every hospital "
        "counting alike. Federation: every model at every hospital. Ensemble: the mean probability "
        "of all models. Personalised: the model that a hospital holds after the hand-off. Origin: "
        "the model that started there. After visit: the one that it has just trained. With every "
        "image counting alike, federation accuracy is "
        f"{_text(summary.pooled_federation_accuracy)}. At a hospital the accuracies of all models "
        f"deviate by {_text(summary.disagreement)}: standard deviation, mean over hospitals. Best "
        f"round, chosen on test data: {_text(summary.best_round)}.</p>\n"
    )


def _failures(summary: Summary) -> str:
    columns = ["round", "hop", "hospital", "verb", "lineage", "outcome", "reason"]
    rows = [[failure[column] for column in columns] for failure in summary.failures]
    error = f"<p>The run failed. {escape(summary.error)}</p>\n" if summary.error else ""
    listed = f" The first {LISTED}; summary.json has all." if len(rows) > LISTED else ""
    table = _table(columns, rows[:LISTED]) if rows else ""
    return (
        f'<div class="failures">\n{error}<p>Failures of hospitals: {len(rows)}.{listed}</p>\n'
        f"{table}</div>\n"
    )


def _accuracies(summary: Summary) -> str:
    return (
        "<h2>Every model at every hospital</h2>\n"
        "<p>Accuracy after the last evaluated round. Rows are models, by the hospital they started "
        "at; columns are hospitals; grey was not measured. Below, if there are several models, "
        "their mean and standard deviation: the smaller the deviation, the more they agree.</p>\n"
        f"{plots.matrix(summary)}"
        f"<h2>Over the rounds</h2>\n{plots.progress(summary)}"
        "<h2>What each hospital holds</h2>\n<p>Accuracy of the model that a hospital holds after "
        f"a round, on its own test images.</p>\n{plots.hospitals(summary)}"
    )


def _is_serial(summary: Summary) -> bool:
    """Whether one model was tested after several visits of a round."""
    visits = finished(summary.visits)
    return len(summary.models) == 1 and len(visits) > len({row["round"] for row in visits})


def _visits(summary: Summary) -> str:
    last = summary.last_rounds
    rounds = min(LAST_ROUNDS, summary.rounds)
    amplitude = f"{_text(last['mean'])} ± {_text(last['std'])}"
    if isfinite(last["balanced_mean"]):
        amplitude += f", balanced {_text(last['balanced_mean'])} ± {_text(last['balanced_std'])}"
    page = (
        "<h2>After every visit</h2>\n<p>Global accuracy of the model that goes from hospital to "
        "hospital: on the test images of all of them, every image counting alike. Dots: the end of "
        f"a visit. Mean and standard deviation over all visits of the last {rounds} rounds: "
        f"{amplitude}. The deviation is the amplitude of the oscillation; progress in these rounds "
        f"adds to it.</p>\n{plots.oscillation(summary)}"
    )
    if len(summary.hospitals) <= plots.NAMED:
        page += (
            "<p>Its accuracy at each hospital. Dots: it has just been there.</p>\n"
            f"{plots.own(summary)}"
        )
    return page


def _participation(summary: Summary) -> str:
    return (
        "<h2>Who took part</h2>\n<p>Blue: trained a model. Red: missed a visit. Grey: was not "
        f"asked.</p>\n{plots.participation(summary)}"
    )


def _synthetic(summary: Summary) -> str:
    hospitals = sorted(summary.synthetic)[:COLUMNS]
    figures = sorted({name for each in summary.synthetic.values() for name in each})
    rows = [[name, *(summary.synthetic[h].get(name, nan) for h in hospitals)] for name in figures]
    return (
        "<h2>Synthetic images</h2>\n<p>What the hospitals measured of their GANs and of the images "
        "that they handed on; docs/privacy.md says what each figure means. The images themselves "
        "are in the hospitals' own folders. Of many hospitals only the first are shown; "
        f"summary.json has all.</p>\n{_table(['', *hospitals], rows)}"
    )


def _costs(summary: Summary) -> str:
    return (
        "<h2>Time and traffic</h2>\n<p>Summed over hospitals; wait is the time between a message "
        "and its answer in which the hospital was not working on it.</p>\n"
        f"{plots.seconds(summary)}<p>To hospitals {_size(summary.bytes_sent)}, from hospitals "
        f"{_size(summary.bytes_received)}; one visit moves {_size(summary.bytes_per_hop)}, both "
        "ways.</p>\n"
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [
        f"<tr>{''.join(f'<td>{escape(_text(cell))}</td>' for cell in row)}</tr>" for row in rows
    ]
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    return "\n".join(["<table>", f"<tr>{titles}</tr>", *lines, "</table>\n"])


def _text(value: object) -> str:
    """A value for people: fractions with three digits, a dash where there is none."""
    if isinstance(value, float):
        return f"{value:.3f}" if isfinite(value) else "–"
    return "–" if value is None else str(value)


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:,.1f} MB" if isfinite(num_bytes) else "–"
