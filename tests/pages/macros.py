"""One part of a page alone, as templates call it."""

from typing import Any

from pages.page import _templates

WITH_BODY = ("section", "fold")


def call(name: str, *values: Any) -> str:
    """The markup of a macro of pages/templates/parts.html.md."""
    given = {f"value{k}": value for k, value in enumerate(values)}
    called = f"{name}({', '.join(given)})"
    written = (
        f"{{% call {called} %}}{{% endcall %}}" if name in WITH_BODY else f"{{{{ {called} }}}}"
    )
    imported = f'{{% from "parts.html.md" import {name} with context %}}'
    return _templates().from_string(imported + written).render(contents=[], **given)
