"""Whether an answer equals the reference: extract, read its notation, compare."""
