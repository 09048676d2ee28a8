"""The proof that what comes back is right: of each prompt, and of the server."""
