"""Whether shards are what they should be, and a look at them."""
