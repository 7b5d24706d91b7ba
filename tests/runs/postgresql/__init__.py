"""The engine on PostgreSQL: its connections, its locks, and what its columns hold."""
