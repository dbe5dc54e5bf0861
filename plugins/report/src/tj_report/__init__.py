"""tj-report: one HTML page about the programs behind a callable."""
