"""How a run ended, as a closed union: `Succeeded[T] | Failed | Canceled` [M-11]."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from perdure.codec.json import codec_for, codec_of
from perdure.core.facts import Failure, ItemCounts

if TYPE_CHECKING:
    from typing_extensions import TypeForm

Out_co = TypeVar("Out_co", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Succeeded(Generic[Out_co]):
    """The run succeeded.

    Attributes:
        run_id: the run.
        output: what the output function made, decoded for the reader alone [M-7].
        in_doubt: steps that ended in doubt although the run went on, sorted [U-9].
    """

    run_id: str
    output: Out_co
    in_doubt: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Unsuccessful:
    """The run failed, and what could be taken back was.

    Attributes:
        run_id: the run.
        failure: the failure that ended forward work.
        unwind_failures: permanent failures of unwind handlers, in the order they happened.
        in_doubt: steps with an attempt whose effect is not known from the handler itself, sorted [U-9].
        half_unwound: steps whose unwind was started and never resolved, sorted.
        uncompensated: steps that had their effect, can unwind now, and were not unwound, sorted.
        unavailable: steps that had their effect and can no longer unwind, though they once could, sorted.
        encoded_output: the JSON that the failure-output function made, `null` where there is none.
        item_counts: how many items, turns or child runs completed, failed and are in doubt, of each step that began one
            and did not succeed, sorted by step [U-12].
    """

    run_id: str
    failure: Failure
    unwind_failures: tuple[Failure, ...] = ()
    in_doubt: tuple[str, ...] = ()
    half_unwound: tuple[str, ...] = ()
    uncompensated: tuple[str, ...] = ()
    unavailable: tuple[str, ...] = ()
    encoded_output: bytes = field(default=b"null", repr=False)
    item_counts: tuple[ItemCounts, ...] = ()

    @property
    def output(self) -> object:
        """The failure output as plain JSON values, a fresh object each time; None where there is none."""
        return codec_of(object).decode(self.encoded_output)

    def output_as(self, type: TypeForm[T], /) -> T:
        """The failure output as a `type`.

        Raises:
            PayloadError: the output is not such a value; the caller asks for another type.
        """
        return codec_for(type).decode(self.encoded_output)


@dataclass(frozen=True, slots=True)
class Failed(_Unsuccessful):
    """The run failed; see the attributes of the base."""


@dataclass(frozen=True, slots=True)
class Canceled(_Unsuccessful):
    """The run was canceled: a failure of kind `canceled` [M-11]."""


Result: TypeAlias = Succeeded[Out_co] | Failed | Canceled
