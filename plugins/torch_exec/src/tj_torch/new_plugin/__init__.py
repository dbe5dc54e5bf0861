"""The command ``tj new-plugin``, and the templates of the packages that it writes."""
