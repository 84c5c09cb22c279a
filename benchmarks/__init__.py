"""Benchmarks: workloads through the public API, the limits they are held against, and a peer beside them."""
