"""A tensor subclass of a third party's, and an executor for tj that has its product."""
