"""One module for each family of commands; a function is one command.

Stages are imported inside the function that needs them: transformers alone takes seconds to
import, and ``statetap --help`` must not.
"""
