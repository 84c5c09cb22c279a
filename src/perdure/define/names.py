"""Names that people give: pipelines, steps, resources, tenants."""

from __future__ import annotations

from perdure.errors import DefinitionError

MAX_NAME_BYTES = 512


def name_problem(name: object) -> str | None:
    """What is wrong with a name, completing a sentence that begins with it; None: nothing."""
    if not isinstance(name, str):
        return f"must be a str, not {type(name).__name__}"
    if not name.strip():
        return "must not be empty or blank"
    if name != name.strip():
        return "must not begin or end with white space"
    if "\x00" in name:
        return "must not hold NUL"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "must not hold a lone surrogate"
    return None if size <= MAX_NAME_BYTES else f"must not be longer than {MAX_NAME_BYTES} bytes, this has {size:,}"


def check_id(what: str, name: object) -> str:
    """`name`, fit to be the id of a step or pipeline.

    Raises:
        DefinitionError: it is not; the author gives another.
    """
    problem = name_problem(name)
    if problem is not None:
        raise DefinitionError(f"the id of a {what} {problem}: {ascii(name)[:80]}")
    return str(name)
