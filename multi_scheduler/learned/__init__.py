"""The model of the learned agent: learns from pods' outcomes which virtual nodes to prefer.

``bandit`` and ``memory`` do no IO; ``files`` saves the state. Only the learned agent imports them.
"""
