"""Whether a response's answer equals the reference:
extract it, read its notation, compare exactly or by SymPy.
"""
