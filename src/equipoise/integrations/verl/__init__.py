"""verl: `plugin` is what its settings name (needs verl), `export` a configuration as its override
list.
"""
