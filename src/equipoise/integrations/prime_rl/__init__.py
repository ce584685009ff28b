"""prime-rl: `plugin` has the loss that `trainer.loss.import_path` names."""
