"""Durable pipelines in plain Python."""

from perdure.core.retry import Retry
from perdure.define.decorator import step
from perdure.define.invocation import FailedInvocation, Invocation, PureInvocation, UnwindInvocation
from perdure.define.output import nothing
from perdure.define.pipeline import Bound, Pipeline
from perdure.define.result import Canceled, Failed, Result, Succeeded
from perdure.define.signals import Fail, FailureDetail
from perdure.define.step import AnyStep, AsyncStep, Step, SyncStep, optional, retired

__all__ = [
    "AnyStep",
    "AsyncStep",
    "Bound",
    "Canceled",
    "Fail",
    "Failed",
    "FailedInvocation",
    "FailureDetail",
    "Invocation",
    "Pipeline",
    "PureInvocation",
    "Result",
    "Retry",
    "Step",
    "Succeeded",
    "SyncStep",
    "UnwindInvocation",
    "nothing",
    "optional",
    "retired",
    "step",
]
