"""Command-line programs: arguments and printing only."""
