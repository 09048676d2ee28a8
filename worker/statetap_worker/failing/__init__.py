"""What becomes of a prompt whose try, process or server has failed."""
