"""Workers killed and paused, a server restarted, deployments under load: `python -m tests.chaos`, or `make chaos`."""
