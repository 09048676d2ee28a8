"""A list of facts for a terminal: name on the left, value on the right."""

from rich.table import Table


def fact_table(title: str) -> Table:
    """An empty list; ``add_row`` takes name and value."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    return table
