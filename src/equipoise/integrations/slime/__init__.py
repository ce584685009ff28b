"""slime: `plugin` has the functions that its options name by path."""
