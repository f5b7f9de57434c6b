"""Computes how much a pod fragments divisible devices. No IO. Used by the fragmentation agent."""
