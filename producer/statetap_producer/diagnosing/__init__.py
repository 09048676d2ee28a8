"""What a server's log says about dumps that others made."""
