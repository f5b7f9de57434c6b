"""Computes how much a pod fragments divisible devices. No IO. Only the fragmentation agent imports it."""
