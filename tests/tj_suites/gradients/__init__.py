"""Programs, and comparisons of their gradients with eager's, that several files of tests share."""
