"""The store in a database of PostgreSQL: the same tables and the same SQL as in a SQLite file, for any number
of machines. ``psycopg`` is imported here alone, and only for who names a database."""
