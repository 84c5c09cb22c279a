"""The mistakes that are planted, each with the rule it breaks."""

from __future__ import annotations

from tests.sweep.mutants import Mutation

MUTATIONS: tuple[Mutation, ...] = (
    # --- forward
    Mutation("reconciler", "a pin is ignored [E-2]", "if p.pin is not None:", "if False:"),
    Mutation(
        "reconciler",
        "a retired step does not pin [E-2, E-9]",
        "position = topology.position.get(pin)\n    if position is None:",
        "position = topology.position.get(pin)\n    if position is None or topology.steps[position].retired:",
    ),
    Mutation(
        "reconciler",
        "a pin that is gone is forgotten [E-3]",
        "if p.pin is not None:",
        "if p.pin in topology.position and p.pin is not None:",
    ),
    Mutation(
        "reconciler",
        "attempts are counted from the pin's last one [M-8]",
        "RunOp(pin, position, entry.attempts + 1, started=True)",
        "RunOp(pin, position, entry.attempts, started=True)",
    ),
    Mutation("reconciler", "no frontier is good enough [E-5]", "if p.forward and not view.progressed:", "if False:"),
    Mutation(
        "reconciler",
        "only successes ask for a frontier [E-5, E-12]",
        "if p.forward and not view.progressed:",
        "if p.successes and not view.progressed:",
    ),
    Mutation(
        "reconciler", "from the frontier itself [E-6]", "range(view.frontier + 1,", "range(max(view.frontier, 0),"
    ),
    Mutation("reconciler", "the step after the next [E-6]", "range(view.frontier + 1,", "range(view.frontier + 2,"),
    Mutation("reconciler", "from the beginning [E-7]", "range(view.frontier + 1,", "range(0,"),
    Mutation(
        "reconciler",
        "passed steps run [E-7]",
        "if not spec.retired and spec.id not in p.passed:",
        "if not spec.retired:",
    ),
    Mutation(
        "reconciler",
        "retired steps run [E-9]",
        "if not spec.retired and spec.id not in p.passed:",
        "if spec.id not in p.passed:",
    ),
    Mutation(
        "reconciler",
        "a retired step is where it ends [E-9]",
        "if not spec.retired and spec.id not in p.passed:",
        "if spec.retired:\n            return _COMPLETE\n        if spec.id not in p.passed:",
    ),
    Mutation(
        "frontier",
        "the frontier is the lowest [E-4]",
        "max(self.frontier, position)",
        "position if self.frontier < 0 else min(self.frontier, position)",
    ),
    Mutation(
        "frontier",
        "the frontier is the newest [E-4]",
        "self.frontier = max(self.frontier, position)",
        "self.frontier = position",
    ),
    Mutation(
        "frontier",
        "a skip does not count [E-12]",
        'if entry.status == "succeeded" or entry.status == "skipped":',
        'if entry.status == "succeeded":',
    ),
    Mutation(
        "frontier",
        "what is passed is recorded again [E-7]",
        "if s not in p.forward and s not in p.passed]",
        "if s not in p.forward]",
    ),
    Mutation(
        "frontier",
        "steps with an entry are passed [E-7]",
        "if s not in p.forward and s not in p.passed]",
        "if s not in p.passed]",
    ),
    Mutation(
        "frontier",
        "one step too few is passed [E-7]",
        "ids[self.passed_to : position] if",
        "ids[self.passed_to : position - 1] if",
    ),
    Mutation(
        "frontier",
        "passing looks one step too far ahead [E-7]",
        "self.passed_to = position + 1",
        "self.passed_to = position + 2",
    ),
    Mutation("folding", "passed steps are not kept [E-7]", "p.passed.update(passed)", "p.passed.update()"),
    Mutation(
        "folding", "an end is not told to the frontier [E-4]", "p.view.on_progress(step, succeeded=succeeded)", "pass"
    ),
    Mutation(
        "commit",
        "a skip records nothing as passed [E-7]",
        "OperationSkipped(op.step, passed)",
        "OperationSkipped(op.step)",
    ),
    Mutation(
        "commit",
        "a reservation records nothing as passed [E-7]",
        '"forward", view.newly_passed(p, op.position))',
        '"forward")',
    ),
    Mutation(
        "commit",
        "a cancel records nothing as passed [E-7]",
        "in_doubt=op.in_doubt, passed=passed)",
        "in_doubt=op.in_doubt)",
    ),
    Mutation(
        "admission",
        "a resolution records nothing as passed [E-7]",
        "view.newly_passed(p, op.position) if forward else ()",
        "()",
    ),
    # --- cancel and doubt
    Mutation(
        "reconciler",
        "a cancel waits for a started step [R-12]",
        "if p.cancel is not None and not spec.settle and",
        "if False and",
    ),
    Mutation("reconciler", "a cancel never acts [R-12]", "if p.cancel is not None:  # before", "if False:  # before"),
    Mutation(
        "reconciler",
        "a canceled step is in no doubt [U-9]",
        "in_doubt=entry.attempts > 0",
        "in_doubt=False",
    ),
    Mutation("attempts", "a `Fail` under a cancel leaves doubt [R-12]", "in_doubt=not own_word", "in_doubt=True"),
    Mutation("attempts", "exhaustion leaves no doubt [U-9]", 'in_doubt=phase == "forward"', "in_doubt=False"),
    Mutation("folding", "doubt is not kept [U-9]", "    entry.in_doubt = in_doubt\n", ""),
    Mutation("reducer", "a resolved failure leaves no doubt [R-17]", "in_doubt=attempts > 0)", "in_doubt=False)"),
    Mutation(
        "reducer",
        "a resolved skip leaves no doubt [R-17]",
        'entry.in_doubt = fact.how == "skip" and attempts > 0',
        "entry.in_doubt = False",
    ),
    Mutation(
        "reducer",
        "a resolved value leaves doubt [R-17]",
        'entry.in_doubt = fact.how == "skip" and attempts > 0',
        "entry.in_doubt = attempts > 0",
    ),
    Mutation("folding", "a skip counts as a success [U-2]", "succeeded = state is not None", "succeeded = True"),
    # --- unwind
    Mutation(
        "reconciler",
        "steps without unwind are unwound [U-2]",
        "if spec.unwind and had_effect(p, spec):",
        "if had_effect(p, spec):",
    ),
    Mutation(
        "reconciler",
        "steps without effect are unwound [U-2]",
        "if spec.unwind and had_effect(p, spec):",
        "if spec.unwind and spec.id in p.forward:",
    ),
    Mutation(
        "reconciler",
        "retired steps are not unwound [U-2]",
        "if spec.unwind and had_effect(p, spec):",
        "if spec.unwind and not spec.retired and had_effect(p, spec):",
    ),
    Mutation(
        "reconciler",
        "unwinding goes forward [U-3]",
        "range(view.unwind_frontier - 1, -1, -1)",
        "range(0, view.unwind_frontier)",
    ),
    Mutation(
        "reconciler",
        "unwinding ignores what is crossed [U-5]",
        "range(view.unwind_frontier - 1, -1, -1)",
        "range(len(topology) - 1, -1, -1)",
    ),
    Mutation(
        "reconciler",
        "the frontier itself is unwound [U-5]",
        "range(view.unwind_frontier - 1, -1, -1)",
        "range(min(view.unwind_frontier, len(topology) - 1), -1, -1)",
    ),
    Mutation(
        "reconciler",
        "successes ask for no unwind frontier [U-6]",
        "if p.successes and not view.succeeded:",
        "if False:",
    ),
    Mutation(
        "reconciler",
        "crossed steps ask for no unwind frontier [U-6]",
        "if p.crossed and not view.crossed:",
        "if False:",
    ),
    Mutation(
        "reconciler",
        "skips ask for an unwind frontier [U-6]",
        "if p.successes and not view.succeeded:",
        'if any(e.status in ("succeeded", "skipped") for e in p.forward.values()) and not view.progressed:',
    ),
    Mutation(
        "reconciler",
        "skips serve as an unwind frontier [U-6]",
        "if p.successes and not view.succeeded:",
        "if p.successes and not view.progressed:",
    ),
    Mutation("reconciler", "no unwind pins [U-7]", "if pinned is not None:", "if False:"),
    Mutation(
        "reconciler",
        "the frontier is asked before the pin [U-6, U-7]",
        "if pinned is not None:",
        "if pinned is not None and view.succeeded:",
    ),
    Mutation(
        "reconciler",
        "a failed unwind pins [U-8]",
        'p.unwind[last].status != "unresolved"',
        'p.unwind[last].status == "succeeded"',
    ),
    Mutation(
        "reconciler",
        "an unwind switched off pins [U-7]",
        "return _unwind_op(p, spec, position) if spec.unwind and had_effect(p, spec) else None",
        "return _unwind_op(p, spec, position) if had_effect(p, spec) else None",
    ),
    Mutation("reconciler", "any doubt can be unwound [U-12]", "(entry.in_doubt and spec.in_doubt)", "entry.in_doubt"),
    Mutation(
        "reconciler",
        "doubt is never unwound [U-12]",
        '== "succeeded" or (entry.in_doubt and spec.in_doubt)',
        '== "succeeded"',
    ),
    Mutation(
        "reconciler",
        "the wrong handler is called [U-12]",
        'in_doubt=p.forward[spec.id].status != "succeeded"',
        "in_doubt=spec.in_doubt",
    ),
    Mutation(
        "frontier",
        "the unwind frontier is the highest [U-5]",
        "min(self.unwind_frontier, position)",
        "max(self.unwind_frontier % len(self.topology), position)",
    ),
    Mutation(
        "frontier",
        "the step itself is not crossed [U-4]",
        "ids[position : self.crossed_from] if",
        "ids[position + 1 : self.crossed_from] if",
    ),
    Mutation(
        "frontier",
        "what is crossed is recorded again [U-4]",
        "ids[position : self.crossed_from] if s not in p.crossed)",
        "ids[position : self.crossed_from])",
    ),
    Mutation(
        "frontier",
        "crossing stops one step short [U-4]",
        "self.crossed_from = position",
        "self.crossed_from = position - 1",
    ),
    Mutation("folding", "crossed steps are not kept [U-4]", "p.crossed.update(crossed)", "p.crossed.update()"),
    Mutation("folding", "a crossing is not told to the frontier [U-5]", "p.view.on_crossed(crossed)", "pass"),
    Mutation(
        "folding",
        "the first unwind pins, not the last [U-7]",
        "    p.last_unwind = step\n",
        "    p.last_unwind = p.last_unwind or step\n",
    ),
    Mutation(
        "folding",
        "a resolution is no last unwind [U-7]",
        "    p.last_unwind = step\n",
        '    if p.unwind[step].status == "unresolved":\n        p.last_unwind = step\n',
    ),
    Mutation(
        "reducer",
        "an unwind's failure is forgotten [U-8]",
        '        p.unwind[step].status = "failed"\n',
        "",
    ),
    Mutation(
        "reducer",
        "a resolved unwind has always succeeded [R-17]",
        '"succeeded" if fact.how == "value" else "failed"',
        '"succeeded"',
    ),
    Mutation("commit", "an unwind crosses nothing [U-4]", "(), view.newly_crossed(p, op.position))", ")"),
    Mutation(
        "admission", "a resolution crosses nothing [U-4]", "() if forward else view.newly_crossed(p, op.position)", "()"
    ),
    # --- the four lists
    Mutation(
        "reconciler",
        "succeeded unwinds are half done [U-9]",
        'for s, e in p.unwind.items() if e.status == "unresolved"',
        "for s, e in p.unwind.items()",
    ),
    Mutation("reconciler", "compensated steps are listed [U-9]", " and not _unwound(p, s.id))", ")"),
    Mutation(
        "reconciler",
        "failed unwinds compensate [U-9]",
        'entry is not None and entry.status == "succeeded"',
        "entry is not None",
    ),
    Mutation(
        "reconciler",
        "a declared unwind is unavailable [U-9]",
        "if _unwound(p, step) or (position is not None and topology.steps[position].unwind):",
        "if _unwound(p, step):",
    ),
    Mutation(
        "reconciler",
        "what was never declared is unavailable [U-9]",
        "return step in topology.ever_unwind",
        "return True",
    ),
    Mutation(
        "reconciler",
        "any unwind serves a step in doubt [U-9]",
        "entry.in_doubt and step in topology.ever_in_doubt",
        "entry.in_doubt and step in topology.ever_unwind",
    ),
    Mutation(
        "reconciler",
        "doubt is listed by its order [U-9]",
        "tuple(sorted(s for s, e in p.forward.items() if e.in_doubt))",
        "tuple(s for s, e in p.forward.items() if e.in_doubt)",
    ),
)

# Mistakes beyond the sweep's questions: what an end writes. The scenarios look at it.
AT_THE_END: tuple[Mutation, ...] = (
    Mutation(
        "reconciler",
        "a failure is silent about what is unavailable [U-9]",
        "            self.unavailable,\n",
        "            (),\n",
    ),
    Mutation(
        "reconciler",
        "a failure is silent about what is half done [U-9]",
        "            self.half_unwound,\n",
        "            (),\n",
    ),
    Mutation("reconciler", "a cancel is a failure like others [M-11]", 'kind="canceled"', 'kind="system"'),
    Mutation(
        "commit",
        "a lost attempt is not noticed [M-17]",
        "lost = has_open_attempt(p)",
        "lost = False",
    ),
    Mutation("commit", "a false condition runs the step [E-12]", "    if holds:\n", "    if not holds:\n"),
    Mutation(
        "reducer",
        "a retry cuts a sleep short [B-20]",
        "p.due_us = entry.until_us if entry is not None and sleeps else 0",
        "p.due_us = 0",
    ),
    Mutation(
        "reducer",
        "what sleeps is in doubt when it is given up [D-7]",
        "in_doubt = entry.attempts > 0",
        "in_doubt = True",
    ),
    Mutation(
        "commit",
        "a sleep is over at once [B-15]",
        "elif p.due_us > now_us:",
        "elif p.due_us > now_us and p.parked() is None:",
    ),
    Mutation("waits", "a sleep records nothing as passed [E-7]", "opening.need, passed)", "opening.need)"),
    Mutation("reconciler", "a sleep may become a handler [D-1]", "if spec.shape != entry.shape:", "if False:"),
    Mutation(
        "admission",
        "what is given up leaves no doubt [D-7]",
        "Lists(after, topology).end(",
        "Lists(p, topology).end(",
    ),
    Mutation(
        "admission", "who gives up is like any failure [D-7]", '"abandoned", "abandoned")', '"system", "abandoned")'
    ),
    # --- waits and units
    Mutation("waits", "the last message is taken [B-24]", "[entry.awaits[0]][0]", "[entry.awaits[0]][-1]"),
    Mutation("waits", "a wait has no limit [B-8]", "elif 0 < entry.until_us <= s.now_us:", "elif False:"),
    Mutation("waits", "one of the runs is enough [R-13]", "_ended(entry, s) >= entry.need:", "_ended(entry, s) >= 1:"),
    Mutation(
        "unit_reducer",
        "an item that is tried again is not waiting [M-8]",
        "    elif index in unit.waiting:\n        unit.end_backoff(index)\n",
        "    elif index in unit.waiting:\n        pass\n",
    ),
    Mutation(
        "units",
        "all items at once [B-10]",
        "found.startable(s.now_us, ",
        "found.startable(s.now_us, 99 + ",
    ),
    Mutation(
        "units",
        "other items start after a failed one [B-22]",
        "return not _stopping(p, topology, step) and (not found.failed or terms.collect)",
        "return not _stopping(p, topology, step)",
    ),
    Mutation(
        "units",
        "collected failures fail the step [B-22]",
        "if not found.complete or (found.failed and not terms.collect):",
        "if not found.complete or found.failed:",
    ),
    Mutation(
        "units",
        "what was begun leaves no doubt [U-12]",
        'in_doubt = p.attempts("forward", step) > 0',
        "in_doubt = False",
    ),
    Mutation(
        "reconciler",
        "a cancel does not wait for child runs [B-21]",
        "and not spec.settle and not waits_for_children(p, spec):",
        "and not spec.settle and p.attempts('forward', pin) < 0:",
    ),
    Mutation(
        "unit_reducer", "a loop is done with its first turn [B-15]", "unit.done = not fact.more", "unit.done = True"
    ),
    Mutation(
        "unit_reducer", "child runs are submitted for ever [B-21]", "    unit.sent += fact.count", "    unit.sent += 0"
    ),
)
