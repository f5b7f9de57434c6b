"""The model of the learned agent: learns from pods' outcomes which virtual nodes to prefer.

``bandit`` and ``memory`` do no IO. Only the learned agent imports them, and saves their state.
"""
