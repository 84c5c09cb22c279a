"""The test kit: virtual clock, scenarios, simulation, conformance [I-6]."""
