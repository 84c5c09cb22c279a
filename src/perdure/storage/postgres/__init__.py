"""Journals in a schema of a PostgreSQL database: one owner for now, any number of clients [R-2]."""

from perdure.storage.postgres.place import Place
from perdure.storage.postgres.store import PostgresStore

__all__ = ["Place", "PostgresStore"]
