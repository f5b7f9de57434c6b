"""The fit agent: does a real node behind the virtual one have room for the pod?"""
