"""Programs in files of their own: export, files, contract of the inputs, and runs elsewhere."""
