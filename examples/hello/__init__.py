"""The smallest example: `python -m examples.hello.app Ada 2`."""
