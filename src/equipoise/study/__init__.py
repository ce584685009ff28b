"""The same configuration over several objectives: paired prompts and draws, one table."""
