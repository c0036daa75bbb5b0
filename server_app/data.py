"""The images that each hospital reported to have used."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from strategies.engine.events import Event


def data_of(events: Iterable[Event], classes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`Summary.data`, from the hospitals' answers before the first hop."""
    prepared = [each for each in events if each.verb == "query.prepare" and each.outcome == "ok"]
    found = {event.hospital: _hospital_data(event, classes) for event in prepared}
    return dict(sorted(found.items()))


def describe(data: Mapping[str, Mapping[str, Any]], dataset: str) -> str:
    """TOML comments about settings that some hospitals replaced, by `Summary.data`."""
    kinds = {hospital: each["kind"] for hospital, each in data.items() if each["kind"]}
    lines = []
    if any(kind != dataset.partition(":")[0] for kind in kinds.values()):
        lines.append(f"Hospitals used images of their own; dataset = '{dataset}' was not used:")
        lines += [f"  {hospital}: {kind}" for hospital, kind in kinds.items()]
    if own := {h: each["own_settings"] for h, each in data.items() if each["own_settings"]}:
        lines.append("Hospitals that had settings of their own:")
        for hospital, settings in own.items():
            replaced = ", ".join(f"{key} = {value}" for key, value in settings.items())
            lines.append(f"  {hospital}: {replaced}")
    return "".join(f"# {line}\n" for line in lines)


def _hospital_data(event: Event, classes: Sequence[str]) -> dict[str, Any]:
    facts, numbers = event.facts, event.metrics

    def part(name: str) -> dict[str, Any]:
        of_class = f"{name}-images-of-class-"
        return {
            "images": numbers.get(f"num-{name}"),
            "patients": numbers.get(f"num-{name}-patients"),
            "fingerprint": facts.get(f"{name}-images"),
            "classes": {
                title: numbers[f"{of_class}{k}"]
                for k, title in enumerate(classes)
                if f"{of_class}{k}" in numbers
            },
        }

    own = (text.partition("=") for text in facts.get("own-settings", []))
    return {
        "kind": facts.get("data"),
        "train": part("train"),
        "test": part("test"),
        "unusable": numbers.get("num-quarantined"),
        "own_settings": {key: value for key, _, value in own},
    }
