"""An executor for tj, to copy. The plugin is `tj_example_exec.plugin`; start reading there.

Empty on purpose: importing the plugin imports this first.
"""
