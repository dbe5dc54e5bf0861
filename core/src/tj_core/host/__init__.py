"""Plugins: hooks, discovery, options, config, and the session that owns them."""
