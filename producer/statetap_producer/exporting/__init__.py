"""Exports: the samples of shards as the files that other trainers read."""
