"""A run on one page, and the card of its dataset: what was stored, how, and what was not."""
