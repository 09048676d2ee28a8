"""Messages, between Redis and Celery."""
