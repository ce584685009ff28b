"""TRL: `plugin` is the objective inside its GRPOTrainer (needs TRL), `export` a configuration as
its launch script.
"""
