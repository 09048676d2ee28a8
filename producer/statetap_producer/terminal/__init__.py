"""Words, tables and progress for people."""
