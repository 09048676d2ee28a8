"""Rows of a dataset: found, read from any file, and understood. Nothing here knows a model."""
