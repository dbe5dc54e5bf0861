"""Made-up programs, each run in one of the ways in which a user runs programs."""
