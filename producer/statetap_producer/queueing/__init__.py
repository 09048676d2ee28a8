"""A run under way: what is in Redis, what became of each prompt, and the filling of the queue."""
