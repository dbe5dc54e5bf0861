"""TorchDynamo as a capture library."""
