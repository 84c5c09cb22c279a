"""Durable pipelines in plain Python."""

from perdure.app import App, connect
from perdure.core.retry import Retry
from perdure.core.waits import AwaitedRun
from perdure.core.words import ItemCounts
from perdure.define.await_message import AwaitMessage
from perdure.define.await_runs import AwaitRuns
from perdure.define.branch import Branch
from perdure.define.child import Child, ForEachRun
from perdure.define.decorator import step
from perdure.define.foreach import ForEach
from perdure.define.invocation import FailedInvocation, Invocation, PureInvocation, UnwindInvocation
from perdure.define.items import Done, ItemInvocation, ItemReport, More, Settled
from perdure.define.later import Later
from perdure.define.limit import Limit
from perdure.define.loop import Loop
from perdure.define.output import nothing
from perdure.define.pipeline import Bound, Pipeline
from perdure.define.poll import poll
from perdure.define.result import Canceled, Failed, Result, Succeeded
from perdure.define.schedule import Schedule
from perdure.define.signals import Fail, FailureDetail
from perdure.define.sleep import Sleep
from perdure.define.step import AnyStep, AsyncPoll, AsyncStep, Step, SyncPoll, SyncStep, optional, retired
from perdure.errors import (
    ArchiveUnavailable,
    ConflictError,
    CorruptJournal,
    DefinitionError,
    InvalidArgument,
    InvalidRun,
    KeyTaken,
    MutexConflict,
    NotAllowed,
    NotFound,
    PayloadError,
    PerdureError,
    QueueFull,
    ScheduleConflict,
    StoreInUse,
    StoreUnavailable,
    StoreUnusable,
)
from perdure.ports.archive import Archive
from perdure.ports.joining import CallerConnection
from perdure.ports.observer import Event, Observer
from perdure.ports.store import PipelineHold
from perdure.runtime.client import Client
from perdure.runtime.context import RunFilter
from perdure.runtime.engine import Engine
from perdure.runtime.info import RunInfo
from perdure.runtime.operations import (
    AbandonRun,
    CancelRun,
    HoldRun,
    PrioritizeRun,
    ReleaseRun,
    ResolveRun,
    RetryRun,
    RunVerdict,
    Selector,
    SendMessage,
)
from perdure.runtime.run import Run
from perdure.runtime.scheduling import ScheduleInfo
from perdure.runtime.workforce import WorkerInfo, WorkerState
from perdure.storage import open_archive

__all__ = [
    "App",
    "Schedule",
    "ScheduleInfo",
    "connect",
    "Client",
    "Run",
    "CallerConnection",
    "Engine",
    "RunInfo",
    "RunFilter",
    "WorkerInfo",
    "WorkerState",
    "Event",
    "Observer",
    "Selector",
    "RunVerdict",
    "HoldRun",
    "ReleaseRun",
    "RetryRun",
    "CancelRun",
    "ResolveRun",
    "AbandonRun",
    "PrioritizeRun",
    "SendMessage",
    "PipelineHold",
    "Archive",
    "open_archive",
    "ArchiveUnavailable",
    "ConflictError",
    "CorruptJournal",
    "DefinitionError",
    "InvalidArgument",
    "InvalidRun",
    "KeyTaken",
    "MutexConflict",
    "NotAllowed",
    "NotFound",
    "PayloadError",
    "PerdureError",
    "QueueFull",
    "ScheduleConflict",
    "StoreInUse",
    "StoreUnavailable",
    "StoreUnusable",
    "AnyStep",
    "AsyncPoll",
    "AsyncStep",
    "AwaitMessage",
    "AwaitRuns",
    "AwaitedRun",
    "Bound",
    "Branch",
    "Canceled",
    "Child",
    "Done",
    "Fail",
    "Failed",
    "FailedInvocation",
    "FailureDetail",
    "ForEach",
    "ForEachRun",
    "Invocation",
    "ItemCounts",
    "ItemInvocation",
    "ItemReport",
    "Later",
    "Limit",
    "Loop",
    "More",
    "Pipeline",
    "PureInvocation",
    "Result",
    "Retry",
    "Settled",
    "Sleep",
    "Step",
    "Succeeded",
    "SyncPoll",
    "SyncStep",
    "UnwindInvocation",
    "nothing",
    "optional",
    "poll",
    "retired",
    "step",
]
