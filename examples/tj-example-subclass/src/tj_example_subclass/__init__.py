"""A third party's tensor subclass, and an executor for tj with a kernel for its product."""
