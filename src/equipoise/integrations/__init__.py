"""The same objectives in other trainers: of each host a `plugin` that runs there, needs it
installed and imports nothing of ours but `objective` and `verifiers`; and of TRL and verl an
`export`, which writes a configuration as the host's launch. docs/engines.md says what each host can
have, and with which gradient.
"""
