"""Published weights: where they lie, what their tensors are called, and how they become a target."""
