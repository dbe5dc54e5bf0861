"""Programs under autocast, each against eager: values, strides, gradients, writes, errors."""
