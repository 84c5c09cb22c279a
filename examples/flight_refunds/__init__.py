"""The main example: a month of flights, refunds for the bad ones, and a worker that is killed half-way.

Start reading at `pipeline.py`. `python -m examples.flight_refunds` runs it.
"""
