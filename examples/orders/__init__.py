"""Many items, a person who approves, parcels that are runs of their own: `python -m examples.orders.app`."""
