"""verl: `plugin` is what its settings name (needs verl), `export` makes its override list."""
