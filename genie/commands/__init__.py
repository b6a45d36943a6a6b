"""One module for each group of commands; genie/cli.py puts them together."""
