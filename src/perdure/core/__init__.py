"""The pure core: facts, reducer, reconciler, commit planner. No clock, no chance, no I/O."""
