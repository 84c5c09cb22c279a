"""Run ids as people give them: whole, by their beginning, or `last`."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from perdure.cli.exits import Exit
from perdure.cli.problems import refuse
from perdure.errors import NotFound

if TYPE_CHECKING:
    from perdure.runtime.client import Client

SHORTEST = 6


async def resolve_run(client: Client, text: str) -> str:
    """The whole id of the run that the user means.

    Raises:
        Problem: there is none, more than one, or too little was given.
    """
    text = text.strip()
    if text == "last":
        return await _last(client)
    try:
        return (await client.run(text)).id
    except NotFound:
        pass
    if len(text) < SHORTEST:
        refuse(f"{text!r} is too short for a run id", f"give at least its first {SHORTEST} characters, or `last`")
    matching = await client.store.ids_from(text, 4)
    if not matching:
        await _unknown(client, text)
    if len(matching) > 1:
        more = ", ..." if len(matching) > 3 else ""
        refuse(f"more than one run begins with {text!r}", f"give more of the id: {', '.join(matching[:3])}{more}")
    return matching[0]


async def _last(client: Client) -> str:
    newest = await client.list(limit=1)
    if not newest:
        refuse("there are no runs yet", "`perdure submit PIPELINE INPUT` makes one", Exit.NOT_FOUND)
    return newest[0].run_id


async def _unknown(client: Client, text: str) -> None:
    known = [info.run_id for info in await client.list(limit=50)]
    near = difflib.get_close_matches(text, known, 1, cutoff=0.8)
    if near:
        hint = f"did you mean {near[0]}?"
    elif known:
        hint = f"the newest run is {known[0]}; `perdure list` shows more"
    else:
        hint = "there are no runs yet; `perdure submit PIPELINE INPUT` makes one"
    refuse(f"there is no run {text!r}", hint, Exit.NOT_FOUND)
