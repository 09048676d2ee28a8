"""Celery workers that extract, prove and store hidden states."""
