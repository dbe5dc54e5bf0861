"""Programs that are compared with eager: generated, found, and written by hand."""
