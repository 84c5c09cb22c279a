"""A dinner party: three steps, one of them conditional, one that can be taken back, one that is tried again.

python -m examples.hello.app Ada 2      # works at the third attempt; two guests get no cake
python -m examples.hello.app Eve 13     # fails for good: the table is given back
"""

import asyncio
import sys
from dataclasses import dataclass

from perdure import App, Fail, Invocation, Pipeline, Retry, optional, step


@dataclass(frozen=True)
class Party:
    host: str
    guests: int


Inv = Invocation[Party, object]


def give_table_back(inv: Inv, table: int) -> None:
    print(f"table {table} is free again")


@step("reserve-table/v1", unwind=give_table_back)
def reserve_table(inv: Inv) -> int:
    return 7


def is_large(inv: Inv) -> bool:
    return inv.input.guests >= 8


@step("order-cake/v1", when=is_large)
async def order_cake(inv: Inv) -> str:
    return "a cake"


@step("invite/v1", needs=(reserve_table, optional(order_cake)), retry=Retry(initial=0.05))
async def invite(inv: Inv) -> str:
    if inv.input.guests == 13:
        raise Fail("thirteen at a table bring bad luck", reason="superstition", kind="user")
    if inv.attempt < 3:
        raise ConnectionError("the post office is closed")
    return (
        f"{inv.input.host} invites {inv.input.guests} to table {inv[reserve_table]}, {inv.get(order_cake, 'no cake')}"
    )


party: Pipeline[Party, object, str] = Pipeline(
    id="party",
    input=Party,
    deps=object,
    steps=(reserve_table, order_cake, invite),
    output=lambda inv: inv[invite],
)


app = App(party.bind(), store="sqlite:///hello.db")


async def main() -> None:
    async with app.engine() as engine:
        run = await engine.submit(party, Party(sys.argv[1], int(sys.argv[2])))
        print(await run.result())


if __name__ == "__main__":
    asyncio.run(main())
