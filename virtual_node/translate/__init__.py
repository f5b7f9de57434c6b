"""Pure translation between an upper and a lower cluster: plain dicts in, plain dicts out, no IO.

Inputs are never changed; what comes back may share unchanged parts with them.
"""
