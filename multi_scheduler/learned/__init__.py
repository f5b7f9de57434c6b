"""The model of the learned agent: learns from pods' outcomes which virtual nodes to prefer.

``bandit`` and ``memory`` do no IO. The learned agent uses them and saves their state.
"""
