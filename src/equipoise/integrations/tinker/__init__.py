"""The Tinker API: `plugin` makes its data and calls `forward_backward` or
`forward_backward_custom`.
"""
