"""What ``virtual-node doctor`` concludes: facts in, links out. Pure; ``commands.doctor`` gathers and prints."""
