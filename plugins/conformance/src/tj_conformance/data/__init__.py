"""Made-up programs whose sizes and control flow depend on data."""
