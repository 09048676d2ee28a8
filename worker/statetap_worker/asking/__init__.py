"""Talking to one SGLang server."""
