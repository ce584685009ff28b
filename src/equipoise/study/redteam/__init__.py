"""RL as the attacker: a policy learns to be accepted by a verifier and refused by a judge.

`command.redteam` runs it, `replay.replay` tries a kept list of exploits again; `docs/redteam.md`
says what counts. Nothing is imported here: worker processes import `graders` alone.
"""
