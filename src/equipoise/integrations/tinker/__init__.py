"""The Tinker API: `plugin` makes its data and calls its `forward_backward` functions."""
