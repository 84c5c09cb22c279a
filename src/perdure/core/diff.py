"""What an edit of a pipeline did to its topology, in the words of its author [D-4, D-6]."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from perdure.core.topology import StepSpec, Topology

_FLAGS = ("unwind", "in_doubt", "conditional", "settle", "leaves")


class TopologyDiff(msgspec.Struct, frozen=True, gc=False):
    """The difference of two topologies; ids in the order of the topology that has them.

    Attributes:
        inserted: not in the former one.
        removed: in the former one only.
        moved: the fewest steps whose moving explains the new order.
        retired, restored: the flag `retired` was set, or taken back.
        flags: other flags that were switched, as `step: +unwind` or `step: -unwind`; `step: handler -> sleep` where it
            became a step of another shape.
    """

    inserted: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    retired: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Nothing that counts for reconciliation differs."""
        return not any((self.inserted, self.removed, self.moved, self.retired, self.restored, self.flags))


def diff(former: Topology, new: Topology) -> TopologyDiff:
    """What leads from `former` to `new`; O(n log n)."""
    both = [(former.steps[former.position[s.id]], s) for s in new.steps if s.id in former.position]
    return TopologyDiff(
        tuple(s.id for s in new.steps if s.id not in former.position),
        tuple(s.id for s in former.steps if s.id not in new.position),
        _moved(former, [s.id for _, s in both]),
        tuple(s.id for f, s in both if s.retired and not f.retired),
        tuple(s.id for f, s in both if f.retired and not s.retired),
        tuple(change for f, s in both for change in _switched(f, s)),
    )


def _switched(former: StepSpec, new: StepSpec) -> list[str]:
    found = [f"{new.id}: {former.shape} -> {new.shape}"] if former.shape != new.shape else []
    for flag in _FLAGS:
        was, now = getattr(former, flag), getattr(new, flag)
        if was != now:
            found.append(f"{new.id}: {'+' if now else '-'}{flag.replace('_', '-')}")
    return found


def _moved(former: Topology, ids: list[str]) -> tuple[str, ...]:
    """Ids outside the longest run of steps that kept their order."""
    tails: list[int] = []  # least last position of an increasing run of each length
    at: list[int] = []  # index of that run's last step
    before: list[int] = []
    for i, step in enumerate(ids):
        position = former.position[step]
        length = bisect_left(tails, position)
        before.append(at[length - 1] if length else -1)
        if length == len(tails):
            tails.append(position)
            at.append(i)
        else:
            tails[length], at[length] = position, i
    kept: set[int] = set()
    i = at[-1] if at else -1
    while i >= 0:
        kept.add(i)
        i = before[i]
    return tuple(step for i, step in enumerate(ids) if i not in kept)
