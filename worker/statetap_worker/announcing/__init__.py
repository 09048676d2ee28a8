"""Telling the producer, through Redis, which samples lie on this disk."""
