"""TRL: `plugin` is the objective in its GRPOTrainer (needs TRL), `export` makes its launch."""
