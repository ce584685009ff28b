"""The same objectives in other trainers: of each host a `plugin` that runs there, needs it installed and imports
nothing of ours but `objective` and `verifiers`; and an `export`, which writes a configuration as the host's launch.
"""
