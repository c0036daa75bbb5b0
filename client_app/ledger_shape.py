"""What a line of a ledger may say. Reading imports this, writing does not: pydantic takes 0.2 s."""

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, model_validator

Plain = bool | int | float | str


def _is_time(text: str) -> str:
    datetime.fromisoformat(text).timestamp()
    return text


class _Shape(BaseModel, strict=True, extra="forbid"):
    pass


class _Arrays(_Shape):
    """Arrays that left."""

    name: str
    bytes: int
    sha256: str


class _Values(_Shape):
    """Values that left."""

    name: str
    values: dict[str, Plain | list[Plain]]


class _Failure(_Shape):
    """What left in their place."""

    kind: str = Field(alias="class")
    reason: str
    rule: str = ""


class Entry(_Shape):
    """A line: when and what was asked, under which terms, and what left."""

    previous: str
    time: Annotated[str, AfterValidator(_is_time)]
    verb: str
    run: str = ""
    round: int = 0
    hop: int = 0
    task: int = 0
    learner: str = ""
    epochs: int = 0
    images: str = ""
    test: bool = False
    snapshots: bool = False
    buffer_size: int = 0
    replay: list[str] = []
    embeddings: str = ""
    unfit: dict[str, str] = {}
    terms: str = ""
    settings: dict[str, Plain] = {}
    unknown: int = 0
    code: str = ""
    policy: str = ""
    left: list[_Arrays | _Values] = []
    failure: _Failure | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> "Entry":
        given = self.model_fields_set
        if ("left" in given) == (self.failure is not None):
            raise ValueError("an answer left, or a failure")
        if "settings" in given and not {"terms", "code", "policy"} <= given:
            raise ValueError("settings, code and policy belong together")
        return self
